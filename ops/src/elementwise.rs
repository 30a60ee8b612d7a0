//! Elementwise operators on two operands: `+ - * /` and `minus`.

pub(crate) use autobwd::operators::grad_or_zeros;
pub use autobwd::operators::{
    ElementwiseAdd, ElementwiseAddGrad, ElementwiseAddGradGrad, ElementwiseDiv, ElementwiseDivGrad,
    ElementwiseDivGradGrad, ElementwiseMul, ElementwiseMulGrad, ElementwiseMulGradGrad, ElementwiseSub,
    ElementwiseSubGrad, ElementwiseSubGradGrad,
};
use autobwd::{
    Float, GradCx, GradRule, Pointwise, Result, Var,
    check::*,
    op::{Integer, PointwiseInteger},
    operators::Scale,
    register_op,
};

/// Difference of equal shapes: `out = x - y`.
#[register_op(grad = MinusGrad, pointwise, integers)]
pub struct Minus<V = Var> {
    /// Any shape.
    #[input]
    pub x: V,
    /// Same shape as `x`.
    #[input]
    pub y: V,
    /// Same shape as `x`.
    #[output(inplace = x)]
    pub out: V,
}
impl<F: Float> Pointwise for Minus<F> {
    fn eval(&mut self) {
        self.out = self.x - self.y;
    }
}
impl<I: Integer> PointwiseInteger for Minus<I> {
    fn eval(&mut self) -> Result<()> {
        self.out = self.x - self.y;
        Ok(())
    }
}
autobwd::samples!(
    Minus,
    [
        Minus { x: uniform([2, 3]), y: uniform([2, 3]), out: out() },
        Minus { x: uniform([]), y: uniform([]), out: out() },
        Minus { x: integers_below(9, [2, 3]), y: integers_below(9, [2, 3]), out: out() },
        Minus { x: uniform([2, 3]), y: uniform([3]), out: out() }
            .fails("`Y`: shape [3] does not match [2, 3] of `X`"),
    ]
);

/// `dx = dout`, `dy = -dout`, each a `scale` operator.
#[derive(Debug)]
pub struct MinusGrad;
impl GradRule<Minus> for MinusGrad {
    fn emit(fwd: &Minus, g: &mut GradCx<'_>) {
        let dout = g.grad(fwd.out);
        for (input, scale) in [(fwd.x, 1.0), (fwd.y, -1.0)] {
            if let Some(out) = g.wanted(input) {
                g.push(Scale { x: dout, out, scale, bias: 0.0, bias_after_scale: true });
            }
        }
    }
}
