//! The largest and the smallest element over dimensions.
//!
//! NaN counts as larger than all and as smaller than all.

use autobwd::{
    Buf, Cx, DType, GradCx, GradRule, Infer, Kernel, Meta, Result, Var, check::*, register_op, with_float,
    with_signed,
};

use super::{
    ReduceSum,
    cut::{Reduce, Reduction, infer_grad, reduced_dims, result_dtype, with_result_dtype},
};
use crate::{
    common::{converted_bytes, elements},
    elementwise::ElementwiseMul,
    fill::FillAnyLike,
};

/// The rows that both share.
macro_rules! extreme_samples {
    ($op:ident) => {
        autobwd::samples!(
            $op,
            [
                $op {
                    x: distinct([2, 3]).of(DType::F64),
                    out: out(),
                    dim: vec![0],
                    keep_dim: false,
                    reduce_all: false,
                    in_dtype: Some(DType::F64),
                    out_dtype: Some(DType::F64)
                },
                row!($op, distinct([2, 3, 4]), [0], false, false),
                row!($op, distinct([2, 3, 4]), [-1], true, false),
                row!($op, distinct([2, 3, 4]), [1], false, false),
                row!($op, distinct([2, 3, 4, 5]), [0, 2], true, false),
                row!($op, distinct([3, 2, 9]), [2, 0], false, false),
                row!($op, distinct([3, 70]), [0], false, false),
                row!($op, distinct([2, 3]), [], false, false),
                row!($op, distinct([2, 3]), [1], true, true),
                row!($op, distinct([]), [0], false, false),
                row!($op, distinct([0, 3]), [1], false, false),
                Sample::not_a_derivative(
                    row!($op, given([4], [1.0, 2.0, 2.0, 1.0]), [0], false, false),
                    "every one of several gets the whole gradient"
                ),
                Sample::not_a_derivative(
                    row!($op, given([3, 2], [f64::NAN, 1.0, 2.0, 3.0, f64::NAN, 4.0]), [0], false, false),
                    "NaN has none"
                ),
                Sample::fails(
                    row!($op, distinct([0, 3]), [0], false, false),
                    "`X`: at least one element to choose from is needed"
                ),
                row!($op, given([2, 3], [3.0, -9.0, 4.0, 4.0, 0.0, -1.0]).of(DType::I32), [1], false, false),
                row!($op, integers_below(99, [2, 3, 4]), [0, 2], true, false),
                $op {
                    out_dtype: Some(DType::I32),
                    ..row!($op, integers_below(2, [2, 3]).of(DType::Bool), [1], false, false)
                },
                Sample::not_a_derivative(
                    $op {
                        in_dtype: Some(DType::F64),
                        out_dtype: Some(DType::F32),
                        ..row!($op, distinct([2, 3]).of(DType::F64), [1], false, false)
                    },
                    "rounded to float32, a small step vanishes"
                ),
                Sample::fails(
                    row!($op, integers_below(9, [0, 3]), [0], false, false),
                    "`X`: at least one element to choose from is needed"
                ),
                Sample::fails(row!($op, distinct([2, 3]), [2], false, false), "attribute `dim` = 2"),
            ]
        );
    };
}

macro_rules! row {
    ($op:ident, $x:expr, $dim:expr, $keep_dim:expr, $reduce_all:expr) => {
        $op {
            x: $x,
            out: out(),
            dim: $dim.to_vec(),
            keep_dim: $keep_dim,
            reduce_all: $reduce_all,
            in_dtype: None,
            out_dtype: None,
        }
    };
}

/// The largest element over dimensions: `out = max(x)`.
#[register_op(grad = ReduceMaxGrad)]
pub struct ReduceMax<V = Var> {
    /// At least one element for each of the result.
    #[input]
    pub x: V,
    /// `x` without the dimensions that are searched; with `keep_dim` they are 1.
    #[output]
    pub out: V,
    /// The dimensions to search, negative ones from behind; none means all.
    #[attr(default = [0])]
    pub dim: Vec<i32>,
    /// Keep the number of dimensions.
    #[attr(default = false)]
    pub keep_dim: bool,
    /// Search all dimensions, whatever `dim` says.
    #[attr(default = false)]
    pub reduce_all: bool,
    /// The dtype of `x`, or −1, which means the same.
    #[attr(default = None)]
    pub in_dtype: Option<DType>,
    /// The dtype of `out`, to which `x` is converted first; −1 means that of `x`.
    #[attr(default = None)]
    pub out_dtype: Option<DType>,
}
impl Infer for ReduceMax<Meta> {
    fn infer(&mut self) -> Result<()> {
        let dims = reduced_dims(&self.x, &self.dim, self.reduce_all, self.keep_dim)?;
        self.out.set(result_dtype(&self.x, self.in_dtype, self.out_dtype)?, dims);
        any_to_choose(&self.x, &self.out)
    }
}
impl Kernel for ReduceMax<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let cut = Reduction::new(&self.x, &self.dim, self.reduce_all);
        with_signed!(self.out, T => elements::<T, _>(cx, &self.x, |x| {
            T::pick(&cut, cx, x, self.out.slice_mut()?, |x, best| x > best);
            Ok(())
        }))
    }

    fn scratch_bytes(&self, _: usize) -> usize {
        converted_bytes(&self.x, self.out.dtype(), 1)
    }
}
extreme_samples!(ReduceMax);

/// Refuses to choose from nothing.
fn any_to_choose(x: &Meta, out: &Meta) -> Result<()> {
    if x.dims.numel() == 0 && out.dims.numel().get().is_some_and(|n| n > 0) {
        return Err(x.wrong("at least one element to choose from is needed"));
    }
    Ok(())
}

/// `dx = dout` where `x = out`, which all of several equal elements are; else 0.
#[register_op(grad_of = ReduceMax, grad = ReduceMaxGradGrad)]
pub struct ReduceMaxGrad<V = Var> {
    pub x: V,
    pub out: V,
    pub dout: V,
    #[output]
    pub dx: V,
    pub dim: Vec<i32>,
    pub keep_dim: bool,
    pub reduce_all: bool,
    pub in_dtype: Option<DType>,
    pub out_dtype: Option<DType>,
}
impl Infer for ReduceMaxGrad<Meta> {
    fn infer(&mut self) -> Result<()> {
        let dims = reduced_dims(&self.x, &self.dim, self.reduce_all, self.keep_dim)?;
        self.out.same_as(&self.dout)?;
        infer_grad(dims, &self.x, self.out_dtype, &self.dout, &mut self.dx)
    }
}
impl Kernel for ReduceMaxGrad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let cut = Reduction::new(&self.x, &self.dim, self.reduce_all);
        with_float!(self.dout, T => {
            let results = (self.out.slice::<T>()?, self.dout.slice()?);
            with_result_dtype(cx, &self.x, &mut self.dx, |x, dx| {
                cut.put_back(cx, x, results, dx);
                Ok(())
            })
        })
    }

    fn scratch_bytes(&self, _: usize) -> usize {
        converted_bytes(&self.x, self.dout.dtype(), 2)
    }
}

/// Both gradients of gradients are the same, as both gradients are.
macro_rules! extreme_grad_grad {
    ($rule:ident, $grad:ident) => {
        impl GradRule<$grad> for $rule {
            fn emit(fwd: &$grad, g: &mut GradCx<'_>) {
                let ddx = g.grad(fwd.dx);
                let Some(ddout) = g.wanted(fwd.dout) else { return };
                let $grad { x, out, dout, keep_dim, reduce_all, in_dtype, out_dtype, .. } = *fwd;
                let (ones, chosen, product) = (g.fresh("ones"), g.fresh("chosen"), g.fresh("product"));
                g.push(FillAnyLike { x: dout, out: ones, value: 1.0, dtype: None });
                let dim = fwd.dim.clone();
                g.push($grad {
                    x,
                    out,
                    dout: ones,
                    dx: chosen,
                    dim,
                    keep_dim,
                    reduce_all,
                    in_dtype,
                    out_dtype,
                });
                g.push(ElementwiseMul { x: ddx, y: chosen, out: product, axis: -1 });
                let dim = fwd.dim.clone();
                g.push(ReduceSum { x: product, out: ddout, dim, keep_dim, reduce_all, in_dtype, out_dtype });
            }
        }
    };
}

/// `ddout` = the sum of `ddx` where `x = out`.
pub struct ReduceMaxGradGrad;
extreme_grad_grad!(ReduceMaxGradGrad, ReduceMaxGrad);

/// The smallest element over dimensions: `out = min(x)`.
#[register_op(grad = ReduceMinGrad)]
pub struct ReduceMin<V = Var> {
    /// At least one element for each of the result.
    #[input]
    pub x: V,
    /// `x` without the dimensions that are searched; with `keep_dim` they are 1.
    #[output]
    pub out: V,
    /// The dimensions to search, negative ones from behind; none means all.
    #[attr(default = [0])]
    pub dim: Vec<i32>,
    /// Keep the number of dimensions.
    #[attr(default = false)]
    pub keep_dim: bool,
    /// Search all dimensions, whatever `dim` says.
    #[attr(default = false)]
    pub reduce_all: bool,
    /// The dtype of `x`, or −1, which means the same.
    #[attr(default = None)]
    pub in_dtype: Option<DType>,
    /// The dtype of `out`, to which `x` is converted first; −1 means that of `x`.
    #[attr(default = None)]
    pub out_dtype: Option<DType>,
}
impl Infer for ReduceMin<Meta> {
    fn infer(&mut self) -> Result<()> {
        let dims = reduced_dims(&self.x, &self.dim, self.reduce_all, self.keep_dim)?;
        self.out.set(result_dtype(&self.x, self.in_dtype, self.out_dtype)?, dims);
        any_to_choose(&self.x, &self.out)
    }
}
impl Kernel for ReduceMin<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let cut = Reduction::new(&self.x, &self.dim, self.reduce_all);
        with_signed!(self.out, T => elements::<T, _>(cx, &self.x, |x| {
            T::pick(&cut, cx, x, self.out.slice_mut()?, |x, best| x < best);
            Ok(())
        }))
    }

    fn scratch_bytes(&self, _: usize) -> usize {
        converted_bytes(&self.x, self.out.dtype(), 1)
    }
}
extreme_samples!(ReduceMin);

/// `dx = dout` where `x = out`, which all of several equal elements are; else 0.
#[register_op(grad_of = ReduceMin, grad = ReduceMinGradGrad)]
pub struct ReduceMinGrad<V = Var> {
    pub x: V,
    pub out: V,
    pub dout: V,
    #[output]
    pub dx: V,
    pub dim: Vec<i32>,
    pub keep_dim: bool,
    pub reduce_all: bool,
    pub in_dtype: Option<DType>,
    pub out_dtype: Option<DType>,
}
impl Infer for ReduceMinGrad<Meta> {
    fn infer(&mut self) -> Result<()> {
        let dims = reduced_dims(&self.x, &self.dim, self.reduce_all, self.keep_dim)?;
        self.out.same_as(&self.dout)?;
        infer_grad(dims, &self.x, self.out_dtype, &self.dout, &mut self.dx)
    }
}
impl Kernel for ReduceMinGrad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let cut = Reduction::new(&self.x, &self.dim, self.reduce_all);
        with_float!(self.dout, T => {
            let results = (self.out.slice::<T>()?, self.dout.slice()?);
            with_result_dtype(cx, &self.x, &mut self.dx, |x, dx| {
                cut.put_back(cx, x, results, dx);
                Ok(())
            })
        })
    }

    fn scratch_bytes(&self, _: usize) -> usize {
        converted_bytes(&self.x, self.dout.dtype(), 2)
    }
}

/// `ddout` = the sum of `ddx` where `x = out`.
pub struct ReduceMinGradGrad;
extreme_grad_grad!(ReduceMinGradGrad, ReduceMinGrad);
