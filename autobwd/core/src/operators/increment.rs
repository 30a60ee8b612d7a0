//! Incrementing a counter.

use crate::{
    DType, Float, GradCx, GradRule, Integer, Pointwise, PointwiseInteger, Result, Var, register_op, sample::*,
};

use super::Assign;

/// `out = x + step`, where `out` may be the variable `x` itself: a counter.
#[register_op(grad = IncrementGrad, pointwise, integers, infallible)]
pub struct Increment<V = Var> {
    /// Any shape, usually one element.
    #[input]
    pub x: V,
    /// Same shape and dtype as `x`.
    #[output(inplace = x)]
    pub out: V,
    /// The increment; for integers, one of their dtype.
    #[attr(default = 1.0)]
    pub step: f64,
}
impl<F: Float> Pointwise for Increment<F> {
    fn eval(&mut self) {
        self.out = self.x + self.step;
    }
}
impl<I: Integer> PointwiseInteger for Increment<I> {
    fn eval(&mut self) -> Result<()> {
        self.out = self.x + I::of("step", self.step)?;
        Ok(())
    }
}
crate::samples!(
    Increment,
    [
        Increment { x: uniform([1]), out: out(), step: 1.0 },
        Increment { x: uniform([2, 3]), out: out(), step: -1.5 },
        Increment { x: integers_below(9, []), out: out(), step: 2.0 },
        Increment { x: given([2], [2147483647.0, -1.0]).of(DType::I32), out: out(), step: 1.0 },
        Increment { x: integers_below(9, [1]), out: out(), step: 1.75 }
            .fails("attribute `step`: 1.75 is not representable in int64"),
        Increment { x: integers_below(2, [1]).of(DType::Bool), out: out(), step: 1.0 }
            .fails("`X`: signed or floating point numbers are needed"),
    ]
);

/// `dx = assign(dout)`. If the operator works in place, `x` keeps its forward value.
#[derive(Debug)]
pub struct IncrementGrad;
impl GradRule<Increment> for IncrementGrad {
    fn emit(fwd: &Increment, g: &mut GradCx<'_>) {
        if let Some(dx) = g.wanted(fwd.x) {
            g.push(Assign { x: g.grad(fwd.out), out: dx });
        }
    }
}
