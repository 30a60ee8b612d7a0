//! Sums and means over dimensions of one tensor.

use autobwd::{
    Buf, Cx, DType, GradCx, GradRule, Infer, Kernel, Meta, Result, Var, check::*, register_op, with_float,
};

use super::cut::{Reduction, infer_grad, reduced_dims, same_dtypes, total};
use crate::common::Real;

/// Mean of all elements: `out = Σ x / n`.
#[register_op(grad = MeanGrad)]
pub struct Mean<V = Var> {
    /// Any shape; the mean of nothing is NaN.
    #[input]
    pub x: V,
    /// A scalar, `[]`.
    #[output]
    pub out: V,
}
impl Infer for Mean<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.x.float()?;
        self.out.set(self.x.dtype, []);
        Ok(())
    }
}
impl Kernel for Mean<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        with_float!(self.x, T => {
            let x = self.x.slice::<T>()?;
            self.out.slice_mut()?.fill(T::of(total(cx, x, |x| x) / x.len() as f64));
            Ok(())
        })
    }
}
autobwd::samples!(
    Mean,
    [
        Mean { x: uniform([2, 3, 4]), out: out() },
        Mean { x: uniform([11]), out: out() },
        Mean { x: uniform([]), out: out() },
    ]
);

/// `dx = dout / n` everywhere.
#[register_op(grad = MeanGradGrad)]
pub struct MeanGrad<V = Var> {
    /// Input of the forward operator.
    #[input(shape_only)]
    pub x: V,
    /// Gradient of the mean, one element.
    #[input("Out@GRAD")]
    pub dout: V,
    /// Same shape as `x`.
    #[output("X@GRAD")]
    pub dx: V,
}
impl Infer for MeanGrad<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.dout.same_dtype(&self.x)?;
        if !self.dout.dims.numel().agrees(1.into()) {
            return Err(self.dout.wrong("one element is needed"));
        }
        self.dx.like(&self.x);
        Ok(())
    }
}
impl Kernel for MeanGrad<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        with_float!(self.dout, T => {
            let dx = self.dx.slice_mut()?;
            let n = T::of(dx.len() as f64);
            self.dout.slice::<T>()?.iter().for_each(|dout| dx.fill(dout / n));
            Ok(())
        })
    }
}

/// `ddout = mean(ddx)`.
pub struct MeanGradGrad;
impl GradRule<MeanGrad> for MeanGradGrad {
    fn emit(fwd: &MeanGrad, g: &mut GradCx<'_>) {
        let ddx = g.grad(fwd.dx);
        if let Some(ddout) = g.wanted(fwd.dout) {
            g.push(Mean { x: ddx, out: ddout });
        }
    }
}

/// Sum over dimensions: `out = Σ x`.
#[register_op(grad = ReduceSumGrad)]
pub struct ReduceSum<V = Var> {
    /// Any shape; the sum of nothing is 0.
    #[input]
    pub x: V,
    /// `x` without the dimensions that are summed over; with `keep_dim` they are 1.
    #[output]
    pub out: V,
    /// The dimensions to sum over, negative ones from behind; none means all.
    #[attr(default = [0])]
    pub dim: Vec<i32>,
    /// Keep the number of dimensions.
    #[attr(default = false)]
    pub keep_dim: bool,
    /// Sum over all dimensions, whatever `dim` says.
    #[attr(default = false)]
    pub reduce_all: bool,
    /// The dtype of `x`, or −1, which means the same.
    #[attr(default = None)]
    pub in_dtype: Option<DType>,
    /// As `in_dtype`.
    #[attr(default = None)]
    pub out_dtype: Option<DType>,
}
impl Infer for ReduceSum<Meta> {
    fn infer(&mut self) -> Result<()> {
        let dims = reduced_dims(&self.x, &self.dim, self.reduce_all, self.keep_dim)?;
        same_dtypes(&self.x, self.in_dtype, self.out_dtype)?;
        self.out.set(self.x.dtype, dims);
        Ok(())
    }
}
impl Kernel for ReduceSum<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        with_float!(self.x, T => {
            let cut = Reduction::new(&self.x, &self.dim, self.reduce_all);
            cut.reduce::<T>(cx, self.x.slice()?, self.out.slice_mut()?, 1.0);
            Ok(())
        })
    }
}
autobwd::samples!(
    ReduceSum,
    [
        ReduceSum {
            in_dtype: Some(DType::F64),
            out_dtype: Some(DType::F64),
            ..reduce_sum(uniform([2, 3]).of(DType::F64), &[0], false, false)
        },
        reduce_sum(uniform([2, 3, 4]), &[0], false, false),
        reduce_sum(uniform([2, 3, 4]), &[-1], true, false),
        reduce_sum(uniform([2, 3, 4]), &[2, 0], false, false),
        reduce_sum(uniform([2, 3, 4]), &[1], true, false),
        reduce_sum(uniform([2, 3, 4]), &[1, -1], false, false),
        reduce_sum(uniform([2, 3, 4, 5]), &[0, 2], false, false),
        reduce_sum(uniform([2, 3, 4, 5]), &[1, 3], true, false),
        reduce_sum(uniform([2, 3, 1, 4]), &[0, 2], false, false),
        reduce_sum(uniform([3, 70]), &[0], false, false),
        reduce_sum(uniform([2, 3]), &[], false, false),
        reduce_sum(uniform([2, 3]), &[1], true, true),
        reduce_sum(uniform([]), &[], false, false),
        reduce_sum(uniform([0, 3]), &[0], false, false),
        reduce_sum(uniform([0, 3]), &[1], false, false),
        Sample::fails(reduce_sum(uniform([2, 3]), &[2], false, false), "attribute `dim` = 2"),
        Sample::fails(
            reduce_sum(uniform([2, 3]), &[1, -1], false, false),
            "attribute `dim`: -1 is given twice"
        ),
    ]
);

fn reduce_sum(x: Draw, dim: &[i32], keep_dim: bool, reduce_all: bool) -> ReduceSum<Draw> {
    ReduceSum { x, out: out(), dim: dim.to_vec(), keep_dim, reduce_all, in_dtype: None, out_dtype: None }
}

/// `dx = dout`, repeated over the dimensions that were summed over.
#[register_op(grad = ReduceSumGradGrad)]
pub struct ReduceSumGrad<V = Var> {
    /// Input of the forward operator.
    #[input(shape_only)]
    pub x: V,
    /// Gradient of the sum.
    #[input("Out@GRAD")]
    pub dout: V,
    /// Same shape as `x`.
    #[output("X@GRAD")]
    pub dx: V,
    /// As in `reduce_sum`.
    #[attr(default = [0])]
    pub dim: Vec<i32>,
    /// As in `reduce_sum`.
    #[attr(default = false)]
    pub keep_dim: bool,
    /// As in `reduce_sum`.
    #[attr(default = false)]
    pub reduce_all: bool,
    /// As in `reduce_sum`.
    #[attr(default = None)]
    pub in_dtype: Option<DType>,
    /// As in `reduce_sum`.
    #[attr(default = None)]
    pub out_dtype: Option<DType>,
}
impl Infer for ReduceSumGrad<Meta> {
    fn infer(&mut self) -> Result<()> {
        let dims = reduced_dims(&self.x, &self.dim, self.reduce_all, self.keep_dim)?;
        infer_grad(dims, &self.x, &self.dout, &mut self.dx)
    }
}
impl Kernel for ReduceSumGrad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        with_float!(self.dout, T => {
            let cut = Reduction::new(&self.x, &self.dim, self.reduce_all);
            cut.spread::<T>(cx, self.dout.slice()?, self.dx.slice_mut()?, 1.0);
            Ok(())
        })
    }
}

/// `ddout = reduce_sum(ddx)`.
pub struct ReduceSumGradGrad;
impl GradRule<ReduceSumGrad> for ReduceSumGradGrad {
    fn emit(fwd: &ReduceSumGrad, g: &mut GradCx<'_>) {
        let ddx = g.grad(fwd.dx);
        if let Some(ddout) = g.wanted(fwd.dout) {
            let ReduceSumGrad { keep_dim, reduce_all, in_dtype, out_dtype, .. } = *fwd;
            let dim = fwd.dim.clone();
            g.push(ReduceSum { x: ddx, out: ddout, dim, keep_dim, reduce_all, in_dtype, out_dtype });
        }
    }
}

/// Mean over dimensions: `out = Σ x / n`.
#[register_op(grad = ReduceMeanGrad)]
pub struct ReduceMean<V = Var> {
    /// Any shape; the mean of nothing is NaN.
    #[input]
    pub x: V,
    /// `x` without the dimensions that the mean is taken over; with `keep_dim` they are 1.
    #[output]
    pub out: V,
    /// The dimensions to take the mean over, negative ones from behind; none means all.
    #[attr(default = [0])]
    pub dim: Vec<i32>,
    /// Keep the number of dimensions.
    #[attr(default = false)]
    pub keep_dim: bool,
    /// Take the mean over all dimensions, whatever `dim` says.
    #[attr(default = false)]
    pub reduce_all: bool,
    /// The dtype of `x`, or −1, which means the same.
    #[attr(default = None)]
    pub in_dtype: Option<DType>,
    /// As `in_dtype`.
    #[attr(default = None)]
    pub out_dtype: Option<DType>,
}
impl Infer for ReduceMean<Meta> {
    fn infer(&mut self) -> Result<()> {
        let dims = reduced_dims(&self.x, &self.dim, self.reduce_all, self.keep_dim)?;
        same_dtypes(&self.x, self.in_dtype, self.out_dtype)?;
        self.out.set(self.x.dtype, dims);
        Ok(())
    }
}
impl Kernel for ReduceMean<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        with_float!(self.x, T => {
            let cut = Reduction::new(&self.x, &self.dim, self.reduce_all);
            cut.reduce::<T>(cx, self.x.slice()?, self.out.slice_mut()?, cut.terms as f64);
            Ok(())
        })
    }
}
autobwd::samples!(
    ReduceMean,
    [
        ReduceMean {
            in_dtype: Some(DType::F64),
            out_dtype: Some(DType::F64),
            ..reduce_mean(uniform([2, 3]).of(DType::F64), &[0], false, false)
        },
        reduce_mean(uniform([2, 3, 4]), &[0], false, false),
        reduce_mean(uniform([2, 3, 4]), &[-1], true, false),
        reduce_mean(uniform([2, 3, 4]), &[1], false, false),
        reduce_mean(uniform([2, 3, 4]), &[0, 2], true, false),
        reduce_mean(uniform([2, 3]), &[0], false, true),
        reduce_mean(uniform([2, 3]), &[], true, false),
        Sample::fails(reduce_mean(uniform([2, 3]), &[-3], false, false), "attribute `dim` = -3"),
    ]
);

fn reduce_mean(x: Draw, dim: &[i32], keep_dim: bool, reduce_all: bool) -> ReduceMean<Draw> {
    ReduceMean { x, out: out(), dim: dim.to_vec(), keep_dim, reduce_all, in_dtype: None, out_dtype: None }
}

/// `dx = dout / n`, repeated over the dimensions that the mean was taken over.
#[register_op(grad = ReduceMeanGradGrad)]
pub struct ReduceMeanGrad<V = Var> {
    /// Input of the forward operator.
    #[input(shape_only)]
    pub x: V,
    /// Gradient of the mean.
    #[input("Out@GRAD")]
    pub dout: V,
    /// Same shape as `x`.
    #[output("X@GRAD")]
    pub dx: V,
    /// As in `reduce_mean`.
    #[attr(default = [0])]
    pub dim: Vec<i32>,
    /// As in `reduce_mean`.
    #[attr(default = false)]
    pub keep_dim: bool,
    /// As in `reduce_mean`.
    #[attr(default = false)]
    pub reduce_all: bool,
    /// As in `reduce_mean`.
    #[attr(default = None)]
    pub in_dtype: Option<DType>,
    /// As in `reduce_mean`.
    #[attr(default = None)]
    pub out_dtype: Option<DType>,
}
impl Infer for ReduceMeanGrad<Meta> {
    fn infer(&mut self) -> Result<()> {
        let dims = reduced_dims(&self.x, &self.dim, self.reduce_all, self.keep_dim)?;
        infer_grad(dims, &self.x, &self.dout, &mut self.dx)
    }
}
impl Kernel for ReduceMeanGrad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        with_float!(self.dout, T => {
            let cut = Reduction::new(&self.x, &self.dim, self.reduce_all);
            cut.spread::<T>(cx, self.dout.slice()?, self.dx.slice_mut()?, cut.terms as f64);
            Ok(())
        })
    }
}

/// `ddout = reduce_mean(ddx)`.
pub struct ReduceMeanGradGrad;
impl GradRule<ReduceMeanGrad> for ReduceMeanGradGrad {
    fn emit(fwd: &ReduceMeanGrad, g: &mut GradCx<'_>) {
        let ddx = g.grad(fwd.dx);
        if let Some(ddout) = g.wanted(fwd.dout) {
            let ReduceMeanGrad { keep_dim, reduce_all, in_dtype, out_dtype, .. } = *fwd;
            let dim = fwd.dim.clone();
            g.push(ReduceMean { x: ddx, out: ddout, dim, keep_dim, reduce_all, in_dtype, out_dtype });
        }
    }
}
