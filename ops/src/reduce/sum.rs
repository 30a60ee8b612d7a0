//! Sums and means over dimensions.

use autobwd::{
    Buf, Composition, Cx, DType, Expr, Float, Infer, Kernel, Meta, Multilinear, New, Pointwise, Result, Var,
    check::*,
    emit,
    op::{Decompose, Parts, SelfAdjoint, with_float, with_signed},
    operators::Scale,
    register_op,
};

use super::{
    ReduceAttrs, quotient,
    tiling::{Reduce, total},
};
use crate::{
    Math,
    kernel_helpers::{KernelFloat, converted_bytes, elements},
    math::in_dtype,
};

/// Mean of all elements: `out = Σ x / n`.
#[register_op(grad = MeanGrad, decomposed, infallible)]
pub struct Mean<V = Var> {
    /// Any shape; the mean of no elements is NaN.
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
impl Decompose for Mean {
    fn decompose(&self, parts: &mut Parts<'_>) {
        mean_over(parts, [self.x, self.out], self.x, &ReduceAttrs::over([]));
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
impl Composition for Mean<Expr> {
    fn compose(&mut self) {
        self.out = self.x.mean_over(&[]);
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
#[register_op(grad_of = Mean, grad = Multilinear, decomposed, infallible)]
pub struct MeanGrad<V = Var> {
    #[input(shape_only)]
    pub x: V,
    pub dout: V,
    #[output]
    pub dx: V,
}
impl Infer for MeanGrad<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.dout.same_dtype(&self.x)?;
        self.dout.one_element()?;
        self.dx.like(&self.x);
        Ok(())
    }
}
impl Decompose for MeanGrad {
    fn decompose(&self, parts: &mut Parts<'_>) {
        mean_over(parts, [self.dout, self.dx], self.dx, &ReduceAttrs::over([]));
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

/// Sum over dimensions: `out = Σ x`. Truth values and int32 are summed in int64, unless `out_dtype` says another dtype.
#[register_op(grad = ReduceSumGrad, decomposed, infallible, primitive)]
pub struct ReduceSum<V = Var> {
    /// Any shape; the empty sum is 0.
    #[input]
    pub x: V,
    /// `x` without the reduced dimensions, or with 1 in their place if `keep_dim`.
    #[output]
    pub out: V,
    /// Which dimensions are reduced.
    #[attrs]
    pub reduce: ReduceAttrs,
}
impl Infer for ReduceSum<Meta> {
    fn infer(&mut self) -> Result<()> {
        // As in the reference: a sum of int32 soon overflows.
        let dtype = match self.x.dtype {
            DType::Bool | DType::I32 => DType::I64,
            dtype => dtype,
        };
        self.reduce.infer_as(&self.x, dtype, &mut self.out)
    }
}
impl Decompose for ReduceSum {
    fn decompose(&self, parts: &mut Parts<'_>) {
        sum_over(parts, [self.x, self.out], self.x, &self.reduce);
    }
}
impl Kernel for ReduceSum<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let cut = self.reduce.cut(&self.x);
        with_signed!(self.out, T => elements::<T, _>(cx, &self.x, |x| {
            T::sum(&cut, cx, x, self.out.slice_mut()?);
            Ok(())
        }))
    }

    fn scratch_bytes(&self, _: usize) -> usize {
        converted_bytes(&self.x, self.out.dtype(), 1)
    }
}
autobwd::samples!(
    ReduceSum,
    [
        reduce_sum(uniform([2, 3]).of(DType::F64), ReduceAttrs::over([0]).converting(DType::F64, DType::F64)),
        reduce_sum(uniform([2, 3, 4]), ReduceAttrs::over([0])),
        reduce_sum(uniform([2, 3, 4]), ReduceAttrs::keeping([-1])),
        reduce_sum(uniform([2, 3, 4]), ReduceAttrs::over([2, 0])),
        reduce_sum(uniform([2, 3, 4]), ReduceAttrs::keeping([1])),
        reduce_sum(uniform([2, 3, 4]), ReduceAttrs::over([1, -1])),
        reduce_sum(uniform([2, 3, 4, 5]), ReduceAttrs::over([0, 2])),
        reduce_sum(uniform([2, 3, 4, 5]), ReduceAttrs::keeping([1, 3])),
        reduce_sum(uniform([2, 3, 1, 4]), ReduceAttrs::over([0, 2])),
        reduce_sum(uniform([3, 70]), ReduceAttrs::over([0])),
        reduce_sum(uniform([2, 3]), ReduceAttrs::over([])),
        reduce_sum(uniform([2, 3]), ReduceAttrs::keeping([1]).reduce_all(true)),
        reduce_sum(uniform([]), ReduceAttrs::over([])),
        reduce_sum(uniform([0, 3]), ReduceAttrs::over([0])),
        reduce_sum(uniform([0, 3]), ReduceAttrs::over([1])),
        reduce_sum(
            given([2, 3], [1.0, -2.0, 3.0, 2147483647.0, 5.0, 9.0]).of(DType::I32),
            ReduceAttrs::over([0])
        ),
        reduce_sum(integers_below(9, [2, 3, 4]), ReduceAttrs::keeping([2, 0])),
        reduce_sum(
            given([2, 3], [1.0, 1.0, 0.0, 1.0, 0.0, 0.0]).of(DType::Bool),
            ReduceAttrs::over([1]).out_dtype(DType::I64)
        ),
        reduce_sum(uniform([2, 3]).of(DType::F64), ReduceAttrs::over([1]).converting(DType::F64, DType::F32))
            .not_a_derivative("rounded to float32, a small step vanishes"),
        reduce_sum(uniform([2, 3]).of(DType::F32), ReduceAttrs::over([0]).in_dtype(DType::F64))
            .fails("`X`: float64 is needed, as attribute `in_dtype` says, not float32 [2, 3]"),
        reduce_sum(uniform([2, 3]), ReduceAttrs::over([0]).out_dtype(DType::Bool))
            .fails("attribute `out_dtype`: bool is not one of float32, float64, int32, int64"),
        reduce_sum(integers_below(2, [2, 3]).of(DType::Bool), ReduceAttrs::over([0])),
        reduce_sum(
            given([2, 2], [2147483647.0, 1.0, 2147483647.0, 1.0]).of(DType::I32),
            ReduceAttrs::over([0]).out_dtype(DType::I32)
        ),
        reduce_sum(integers_below(9, [2, 3]).of(DType::U8), ReduceAttrs::over([0]))
            .fails("`X`: attribute `out_dtype` is needed, float32, float64, int32, int64"),
        reduce_sum(uniform([2, 3]), ReduceAttrs::over([2])).fails("attribute `dim` = 2"),
        reduce_sum(uniform([2, 3]), ReduceAttrs::over([1, -1])).fails("attribute `dim`: -1 is given twice"),
    ]
);

fn reduce_sum(x: Draw, reduce: ReduceAttrs) -> ReduceSum<Draw> {
    ReduceSum { x, out: out(), reduce }
}

/// `dx = dout`, broadcast over the reduced dimensions.
#[register_op(grad_of = ReduceSum, grad = Multilinear, decomposed, inferred, infallible)]
pub struct ReduceSumGrad<V = Var> {
    #[input(shape_only)]
    pub x: V,
    pub dout: V,
    #[output]
    pub dx: V,
    #[attrs]
    pub reduce: ReduceAttrs,
}
impl Decompose for ReduceSumGrad {
    fn decompose(&self, parts: &mut Parts<'_>) {
        sum_over(parts, [self.dout, self.dx], self.dx, &self.reduce);
    }
}
impl Kernel for ReduceSumGrad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let cut = self.reduce.cut(&self.x);
        with_float!(self.dx, T => elements::<T, _>(cx, &self.dout, |dout| {
            cut.spread(cx, dout, self.dx.slice_mut()?, 1.0);
            Ok(())
        }))
    }

    fn scratch_bytes(&self, _: usize) -> usize {
        converted_bytes(&self.dout, self.dx.dtype(), 1)
    }
}
impl Composition for ReduceSumGrad<Expr> {
    fn compose(&mut self) {
        self.dx = self.reduce.spread(&in_dtype(&self.dout, self.x.dtype()), &self.x);
    }
}

/// Mean over dimensions: `out = Σ x / n`.
#[register_op(grad = ReduceMeanGrad, decomposed, infallible)]
pub struct ReduceMean<V = Var> {
    /// Any shape; the mean of no elements is NaN.
    #[input]
    pub x: V,
    /// `x` without the reduced dimensions, or with 1 in their place if `keep_dim`.
    #[output]
    pub out: V,
    /// Which dimensions are reduced.
    #[attrs]
    pub reduce: ReduceAttrs,
}
impl Infer for ReduceMean<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.reduce.infer(&self.x, &mut self.out)?;
        self.out.float()
    }
}
impl Decompose for ReduceMean {
    fn decompose(&self, parts: &mut Parts<'_>) {
        mean_over(parts, [self.x, self.out], self.x, &self.reduce);
    }
}
impl Kernel for ReduceMean<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let cut = self.reduce.cut(&self.x);
        with_float!(self.out, T => elements::<T, _>(cx, &self.x, |x| {
            cut.reduce(cx, x, self.out.slice_mut()?, cut.terms as f64);
            Ok(())
        }))
    }

    fn scratch_bytes(&self, _: usize) -> usize {
        converted_bytes(&self.x, self.out.dtype(), 1)
    }
}
impl Composition for ReduceMean<Expr> {
    fn compose(&mut self) {
        let sum = emit(ReduceSum { x: (&self.x).into(), out: New, reduce: self.reduce.clone() }).out;
        self.out = quotient(&sum, &self.reduce.count(&self.x));
    }
}
autobwd::samples!(
    ReduceMean,
    [
        reduce_mean(
            uniform([2, 3]).of(DType::F64),
            ReduceAttrs::over([0]).converting(DType::F64, DType::F64)
        ),
        reduce_mean(uniform([2, 3, 4]), ReduceAttrs::over([0])),
        reduce_mean(uniform([2, 3, 4]), ReduceAttrs::keeping([-1])),
        reduce_mean(uniform([2, 3, 4]), ReduceAttrs::over([1])),
        reduce_mean(uniform([2, 3, 4]), ReduceAttrs::keeping([0, 2])),
        reduce_mean(uniform([2, 3]), ReduceAttrs::over([0]).reduce_all(true)),
        reduce_mean(uniform([2, 3]), ReduceAttrs::keeping([])),
        reduce_mean(integers_below(9, [2, 3]).of(DType::I32), ReduceAttrs::over([1]).out_dtype(DType::F64)),
        reduce_mean(integers_below(9, [2, 3]), ReduceAttrs::over([1]))
            .fails("`Out`: floating point numbers are needed, not int64"),
        reduce_mean(uniform([2, 3]), ReduceAttrs::over([-3])).fails("attribute `dim` = -3"),
    ]
);

fn reduce_mean(x: Draw, reduce: ReduceAttrs) -> ReduceMean<Draw> {
    ReduceMean { x, out: out(), reduce }
}

/// `dx = dout / n`, broadcast over the reduced dimensions.
#[register_op(grad_of = ReduceMean, grad = Multilinear, decomposed, inferred, infallible)]
pub struct ReduceMeanGrad<V = Var> {
    #[input(shape_only)]
    pub x: V,
    pub dout: V,
    #[output]
    pub dx: V,
    #[attrs]
    pub reduce: ReduceAttrs,
}
impl Decompose for ReduceMeanGrad {
    fn decompose(&self, parts: &mut Parts<'_>) {
        mean_over(parts, [self.dout, self.dx], self.dx, &self.reduce);
    }
}
impl Kernel for ReduceMeanGrad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let cut = self.reduce.cut(&self.x);
        with_float!(self.dx, T => elements::<T, _>(cx, &self.dout, |dout| {
            cut.spread(cx, dout, self.dx.slice_mut()?, cut.terms as f64);
            Ok(())
        }))
    }

    fn scratch_bytes(&self, _: usize) -> usize {
        converted_bytes(&self.dout, self.dx.dtype(), 1)
    }
}

/// `out = x / n`, a term of a mean. Not in the reference.
#[register_op(grad = SelfAdjoint, pointwise)]
pub struct MeanTerm<V = Var> {
    /// Any shape.
    #[input]
    pub x: V,
    /// Same shape as `x`.
    #[output(inplace = x)]
    pub out: V,
    /// Number of terms.
    #[attr]
    pub n: f64,
}
impl<F: Float> Pointwise for MeanTerm<F> {
    fn eval(&mut self) {
        self.out = self.x / self.n;
    }
}
autobwd::samples!(
    MeanTerm,
    [MeanTerm { x: uniform([2, 3]), out: out(), n: 6.0 }, MeanTerm { x: uniform([4]), out: out(), n: 1.0 }]
);

/// Decomposes into a sum, or into a broadcast if `out` has the full shape.
fn sum_over(parts: &mut Parts<'_>, [x, out]: [Var; 2], full: Var, reduce: &ReduceAttrs) {
    if line_up(parts, [x, out], full, reduce).is_some() {
        parts.push(Scale { x, out, scale: 1.0, bias: 0.0, bias_after_scale: true });
    }
}

/// As `sum_over`, with terms divided by their number.
fn mean_over(parts: &mut Parts<'_>, [x, out]: [Var; 2], full: Var, reduce: &ReduceAttrs) {
    if let Some(n) = line_up(parts, [x, out], full, reduce) {
        parts.push(MeanTerm { x, out, n: n as f64 });
    }
}

/// Aligns the reduced variable with the full one; returns the number of terms of each element. `None` for empty
/// tensors, which the kernel handles.
fn line_up(parts: &mut Parts<'_>, ends: [Var; 2], full: Var, reduce: &ReduceAttrs) -> Option<usize> {
    let dims = parts.dims(full);
    let ones = reduce.ones_where_reduced(&dims);
    let (of, one) = (dims.iter().product::<usize>(), ones.iter().product::<usize>());
    let reduced = ends.into_iter().find(|var| *var != full)?;
    parts.align(reduced, ones);
    (of > 0).then(|| of / one)
}
