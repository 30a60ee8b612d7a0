//! An elementwise operator.

use autobwd::{Derived, Expr, Float, New, Pointwise, Var, check::*, emit, register_op};

// The operator.
/// Bell curve: `out = exp(-(steepness · x)²)`.
#[register_op(grad = Derived, pointwise)]
pub struct Bell<V = Var> {
    /// Any shape.
    #[input]
    pub x: V,
    /// Same shape as `x`.
    #[output(inplace = x)]
    pub out: V,
    /// Steepness.
    #[attr(default = 1.0, above = 0.0)]
    pub steepness: f32,
}
impl<F: Float> Pointwise for Bell<F> {
    fn eval(&mut self) {
        self.out = (-self.x * self.x * f64::from(self.steepness).powi(2)).exp();
    }
}
autobwd::samples!(
    Bell,
    [
        Bell { x: uniform([2, 3]), out: out(), steepness: 1.5 },
        Bell { x: uniform([5]), out: out(), steepness: -1.0 }.fails("must be above 0, is -1"),
    ]
);
// End of the operator.

/// Bell curve of an expression. Fails for a steepness that is not positive.
#[track_caller]
pub fn bell(x: &Expr, steepness: f32) -> Expr {
    emit(Bell { x: x.into(), out: New, steepness }).out
}
