//! Maximum and minimum over dimensions, whose ties each get the whole gradient.
//!
//! NaN propagates: it counts as larger and as smaller than all numbers.

use autobwd::{
    Buf, Cx, DType, GradCx, GradRule, Infer, Kernel, Meta, Result, Var,
    check::*,
    op::{with_float, with_signed},
    register_op,
};

use super::{
    ReduceAttrs, ReduceSum,
    tiling::{Reduce, with_result_dtype},
};
use crate::{
    elementwise::ElementwiseMul,
    fill::FillAnyLike,
    kernel_helpers::{converted_bytes, elements},
};

/// Samples shared by all operators; `$of_tie` says what a tie does.
macro_rules! extreme_samples {
    ($op:ident, $of_tie:expr) => {
        const _: () = {
            fn row(x: Draw, reduce: ReduceAttrs) -> $op<Draw> {
                $op { x, out: out(), reduce }
            }
            autobwd::samples!(
                $op,
                [
                    row(
                        distinct([2, 3]).of(DType::F64),
                        ReduceAttrs::over([0]).converting(DType::F64, DType::F64)
                    ),
                    row(distinct([2, 3, 4]), ReduceAttrs::over([0])),
                    row(distinct([2, 3, 4]), ReduceAttrs::keeping([-1])),
                    row(distinct([2, 3, 4]), ReduceAttrs::over([1])),
                    row(distinct([2, 3, 4, 5]), ReduceAttrs::keeping([0, 2])),
                    row(distinct([3, 2, 9]), ReduceAttrs::over([2, 0])),
                    row(distinct([3, 70]), ReduceAttrs::over([0])),
                    row(distinct([2, 3]), ReduceAttrs::over([])),
                    row(distinct([2, 3]), ReduceAttrs::keeping([1]).reduce_all(true)),
                    row(distinct([]), ReduceAttrs::over([0])),
                    row(distinct([0, 3]), ReduceAttrs::over([1])),
                    $of_tie(row(given([4], [1.0, 2.0, 2.0, 1.0]), ReduceAttrs::over([0])).into()),
                    row(given([3, 2], [f64::NAN, 1.0, 2.0, 3.0, f64::NAN, 4.0]), ReduceAttrs::over([0]))
                        .not_a_derivative("NaN has none"),
                    row(distinct([0, 3]), ReduceAttrs::over([0]))
                        .fails("`X`: at least one element to choose from is needed"),
                    row(
                        given([2, 3], [3.0, -9.0, 4.0, 4.0, 0.0, -1.0]).of(DType::I32),
                        ReduceAttrs::over([1])
                    ),
                    row(integers_below(99, [2, 3, 4]), ReduceAttrs::keeping([0, 2])),
                    row(
                        integers_below(2, [2, 3]).of(DType::Bool),
                        ReduceAttrs::over([1]).out_dtype(DType::I32)
                    ),
                    row(
                        distinct([2, 3]).of(DType::F64),
                        ReduceAttrs::over([1]).converting(DType::F64, DType::F32)
                    )
                    .not_a_derivative("rounded to float32, a small step vanishes"),
                    row(integers_below(9, [0, 3]), ReduceAttrs::over([0]))
                        .fails("`X`: at least one element to choose from is needed"),
                    row(distinct([2, 3]), ReduceAttrs::over([2])).fails("attribute `dim` = 2"),
                ]
            );
        };
    };
}

pub(super) use extreme_samples;

/// Each of several extreme elements gets the whole gradient.
fn whole(tie: Sample) -> Sample {
    tie.not_a_derivative("every one of several gets the whole gradient")
}

/// The double gradient, the same for all operators.
macro_rules! extreme_grad_grad {
    ($rule:ident, $grad:ident) => {
        impl GradRule<$grad> for $rule {
            fn emit(fwd: &$grad, g: &mut GradCx<'_>) {
                let ddx = g.grad(fwd.dx);
                let Some(ddout) = g.wanted(fwd.dout) else { return };
                let $grad { x, out, dout, .. } = *fwd;
                let (ones, chosen, product) = (g.fresh("ones"), g.fresh("chosen"), g.fresh("product"));
                g.push(FillAnyLike { x: dout, out: ones, value: 1.0, dtype: None });
                g.push($grad { x, out, dout: ones, dx: chosen, reduce: fwd.reduce.clone() });
                g.push(ElementwiseMul { x: ddx, y: chosen, out: product, axis: -1 });
                g.push(ReduceSum { x: product, out: ddout, reduce: fwd.reduce.clone() });
            }
        }
    };
}

pub(super) use extreme_grad_grad;

impl ReduceAttrs {
    pub(super) fn infer_extreme(&self, x: &Meta, out: &mut Meta) -> Result<()> {
        self.infer(x, out)?;
        let nothing = x.dims.numel() == 0 && out.dims.numel().get().is_some_and(|n| n > 0);
        x.require(!nothing, || "at least one element to choose from is needed".into())
    }

    /// Selects the largest or the smallest of the terms.
    pub(super) fn pick<const LARGEST: bool>(&self, cx: &Cx, x: &Buf<'_>, out: &mut Buf<'_>) -> Result<()> {
        let cut = self.cut(x);
        with_signed!(out, T => elements::<T, _>(cx, x, |x| {
            T::pick(&cut, cx, x, out.slice_mut()?, |x, best| if LARGEST { x > best } else { x < best });
            Ok(())
        }))
    }

    fn put_back(&self, cx: &Cx, [x, out, dout]: [&Buf<'_>; 3], dx: &mut Buf<'_>) -> Result<()> {
        let cut = self.cut(x);
        with_float!(dout, T => {
            let results = (out.slice::<T>()?, dout.slice()?);
            with_result_dtype(cx, x, dx, |x, dx| {
                cut.put_back(cx, x, results, dx);
                Ok(())
            })
        })
    }
}

/// Maximum over dimensions: `out = max(x)`. On a tie, every largest element gets the whole gradient, as in the reference;
/// `reduce_amax` shares it.
#[register_op(grad = ReduceMaxGrad)]
pub struct ReduceMax<V = Var> {
    /// At least one element for each element of the result.
    #[input]
    pub x: V,
    /// `x` without the reduced dimensions, or with 1 in their place if `keep_dim`.
    #[output]
    pub out: V,
    /// Which dimensions are reduced.
    #[attrs]
    pub reduce: ReduceAttrs,
}
impl Infer for ReduceMax<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.reduce.infer_extreme(&self.x, &mut self.out)
    }
}
impl Kernel for ReduceMax<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        self.reduce.pick::<true>(cx, &self.x, &mut self.out)
    }

    fn scratch_bytes(&self, _: usize) -> usize {
        converted_bytes(&self.x, self.out.dtype(), 1)
    }
}
extreme_samples!(ReduceMax, whole);

/// `dx = dout` where `x = out`, including all ties; else 0.
#[register_op(grad_of = ReduceMax, grad = ReduceMaxGradGrad, inferred)]
pub struct ReduceMaxGrad<V = Var> {
    pub x: V,
    pub out: V,
    pub dout: V,
    #[output]
    pub dx: V,
    #[attrs]
    pub reduce: ReduceAttrs,
}
impl Kernel for ReduceMaxGrad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        self.reduce.put_back(cx, [&self.x, &self.out, &self.dout], &mut self.dx)
    }

    fn scratch_bytes(&self, _: usize) -> usize {
        converted_bytes(&self.x, self.dout.dtype(), 2)
    }
}

/// `ddout` = the sum of `ddx` over `x = out`.
#[derive(Debug)]
pub struct ReduceMaxGradGrad;
extreme_grad_grad!(ReduceMaxGradGrad, ReduceMaxGrad);

/// Minimum over dimensions: `out = min(x)`. On a tie, every smallest element gets the whole gradient, as in the
/// reference; `reduce_amin` shares it.
#[register_op(grad = ReduceMinGrad)]
pub struct ReduceMin<V = Var> {
    /// At least one element for each element of the result.
    #[input]
    pub x: V,
    /// `x` without the reduced dimensions, or with 1 in their place if `keep_dim`.
    #[output]
    pub out: V,
    /// Which dimensions are reduced.
    #[attrs]
    pub reduce: ReduceAttrs,
}
impl Infer for ReduceMin<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.reduce.infer_extreme(&self.x, &mut self.out)
    }
}
impl Kernel for ReduceMin<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        self.reduce.pick::<false>(cx, &self.x, &mut self.out)
    }

    fn scratch_bytes(&self, _: usize) -> usize {
        converted_bytes(&self.x, self.out.dtype(), 1)
    }
}
extreme_samples!(ReduceMin, whole);

/// `dx = dout` where `x = out`, including all ties; else 0.
#[register_op(grad_of = ReduceMin, grad = ReduceMinGradGrad, inferred)]
pub struct ReduceMinGrad<V = Var> {
    pub x: V,
    pub out: V,
    pub dout: V,
    #[output]
    pub dx: V,
    #[attrs]
    pub reduce: ReduceAttrs,
}
impl Kernel for ReduceMinGrad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        self.reduce.put_back(cx, [&self.x, &self.out, &self.dout], &mut self.dx)
    }

    fn scratch_bytes(&self, _: usize) -> usize {
        converted_bytes(&self.x, self.dout.dtype(), 2)
    }
}

/// `ddout` = the sum of `ddx` over `x = out`.
#[derive(Debug)]
pub struct ReduceMinGradGrad;
extreme_grad_grad!(ReduceMinGradGrad, ReduceMinGrad);
