//! An elementwise operator.

use autobwd::{Derived, Expr, Float, New, Pointwise, Result, Var, check::*, emit, register_op};

// The operator.
/// `out = x · sigmoid(beta · x)` (Ramachandran et al., 2017).
#[register_op(grad = Derived, pointwise)]
pub struct Swish<V = Var> {
    /// Any shape.
    #[input]
    pub x: V,
    /// Same shape as `x`.
    #[output(inplace = x)]
    pub out: V,
    /// Steepness.
    #[attr(default = 1.0, above = 0.0)]
    pub beta: f32,
}
impl<F: Float> Pointwise for Swish<F> {
    fn eval(&mut self) {
        self.out = self.x * (self.x * F::of(self.beta.into())).sigmoid();
    }
}
autobwd::samples!(
    Swish,
    [
        Swish { x: uniform([2, 3]), out: out(), beta: 1.5 },
        Sample::fails(Swish { x: uniform([5]), out: out(), beta: -1.0 }, "must be above 0, is -1"),
    ]
);
// End of the operator.

/// Swish of an expression.
///
/// # Errors
/// A steepness that is not positive.
#[track_caller]
pub fn swish(x: &Expr, beta: f32) -> Result<Expr> {
    Ok(emit(Swish { x: x.into(), out: New, beta })?.out)
}
