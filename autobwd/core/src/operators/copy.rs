//! Copies and conversions between dtypes.

use crate::{
    Buf, Cx, DType, Float, GradCx, GradRule, Infer, Kernel, Meta, Pointwise, Result, SelfAdjoint, Var,
    lanes::half_copy::{converts, copy_converted},
    register_op,
    sample::*,
    with_dtype,
};

use super::convert;

/// A copy: `out = x`.
#[register_op(grad = SelfAdjoint, pointwise, kernel, infallible, any_dtype)]
pub struct Assign<V = Var> {
    /// Any shape, any dtype.
    #[input]
    pub x: V,
    /// Same shape and dtype.
    #[output(inplace = x, like = x)]
    pub out: V,
}
impl Kernel for Assign<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        self.out.copy_from(&self.x)
    }
}
impl<F: Float> Pointwise for Assign<F> {
    fn eval(&mut self) {
        self.out = self.x;
    }
}
crate::samples!(
    Assign,
    [
        Assign { x: uniform([2, 3]), out: out() },
        Assign { x: uniform([]), out: out() },
        Assign { x: integers_below(2, [3]).of(DType::Bool), out: out() },
    ]
);

/// Conversion to another dtype: `out = x`.
///
/// Integers wrap around. Floating point numbers are truncated to integers; those out of range become the nearest
/// integer of the dtype, NaN becomes 0. A number other than 0 is true. Numbers that exceed a floating point dtype become
/// infinite.
#[register_op(grad = CastGrad, pointwise, kernel, infallible, any_dtype)]
pub struct Cast<V = Var> {
    /// Any shape.
    #[input]
    pub x: V,
    /// Same shape.
    #[output]
    pub out: V,
    /// The dtype of `x`.
    #[attr]
    pub in_dtype: DType,
    /// The dtype of `out`.
    #[attr]
    pub out_dtype: DType,
}
impl Infer for Cast<Meta> {
    fn infer(&mut self) -> Result<()> {
        if self.x.dtype != self.in_dtype {
            return Err(self.x.wrong(&format!("{} is needed, as attribute `in_dtype` says", self.in_dtype)));
        }
        self.out.set(self.out_dtype, self.x.dims.clone());
        Ok(())
    }
}
impl Kernel for Cast<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        if converts(self.x.dtype(), self.out_dtype) {
            return copy_converted(cx, &self.x, &mut self.out);
        }
        with_dtype!(self.out_dtype, T => convert::<T>(cx, &self.x, self.out.slice_mut()?))
    }
}
impl<F: Float> Pointwise for Cast<F> {
    fn eval(&mut self) {
        let [no, yes] = [0.0, 1.0].map(F::from);
        let holds = F::select(self.x.equals(no), no, yes);
        self.out = if self.out_dtype == DType::Bool { holds } else { self.x };
    }
}
crate::samples!(
    Cast,
    [
        cast(uniform([2, 3]).of(DType::F64), DType::F64, DType::F64),
        cast(uniform([2, 3]).of(DType::F64), DType::F64, DType::F32)
            .not_a_derivative("rounded to float32, a small step vanishes"),
        cast(between(-9.0, 9.0, [4]).of(DType::F64), DType::F64, DType::I64)
            .not_a_derivative("integers carry no gradient"),
        cast(integers_below(300, [3, 2]), DType::I64, DType::U8),
        cast(integers_below(3, [5]).of(DType::I32), DType::I32, DType::Bool),
        cast(integers_below(2, [0, 2]).of(DType::Bool), DType::Bool, DType::F64),
        cast(integers_below(3, [5]), DType::I32, DType::F32)
            .fails("`X`: int32 is needed, as attribute `in_dtype` says"),
    ]
);

fn cast(x: Draw, in_dtype: DType, out_dtype: DType) -> Cast<Draw> {
    Cast { x, out: out(), in_dtype, out_dtype }
}

/// `dx` = `dout` converted to the dtype of `x`; none if either dtype is integer or bool, which have no gradient.
#[derive(Debug)]
pub struct CastGrad;
impl GradRule<Cast> for CastGrad {
    fn emit(fwd: &Cast, g: &mut GradCx<'_>) {
        let (in_dtype, out_dtype) = (fwd.out_dtype, fwd.in_dtype);
        if let Some(dx) = g.wanted(fwd.x).filter(|_| in_dtype.is_float() && out_dtype.is_float()) {
            g.push(Cast { x: g.grad(fwd.out), out: dx, in_dtype, out_dtype });
        }
    }
}
