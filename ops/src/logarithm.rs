//! Logarithms to other bases, and the logit, each defined by a formula.

use std::f64::consts::{LN_2, LN_10, LOG2_E, LOG10_E};

use autobwd::{Derived, Float, Pointwise, Var, check::*, op::DerivedFromInputs, register_op};

use crate::unary::unary_formula;

unary_formula!(
    /// Binary logarithm: `out = log₂(x)`.
    Log2(grad = Log2Grad), |x| x.log() * LOG2_E,
    samples [positive([2, 3]), given([], [8.0])],
    /// `dx = dout / (ln(2) * x)`.
    Log2Grad(grad = Derived), |x, dout| dout / (x * LN_2)
);

unary_formula!(
    /// Decimal logarithm: `out = log₁₀(x)`.
    Log10(grad = Log10Grad), |x| x.log() * LOG10_E,
    samples [positive([2, 3]), given([], [100.0])],
    /// `dx = dout / (ln(10) * x)`.
    Log10Grad(grad = Derived), |x, dout| dout / (x * LN_10)
);

/// Logit, the inverse of the sigmoid: `out = ln(x / (1 - x))`, of `x` clamped to `eps..=1 - eps`.
///
/// With `eps = 0`, nothing is clamped: numbers that are no probabilities give NaN.
#[register_op(grad = DerivedFromInputs, pointwise)]
pub struct Logit<V = Var> {
    /// Probabilities, any shape.
    #[input]
    pub x: V,
    /// Same shape as `x`.
    #[output(inplace = x)]
    pub out: V,
    /// The smallest probability.
    #[attr(default = 1e-6)]
    pub eps: f32,
}
impl<F: Float> Pointwise for Logit<F> {
    #[inline(always)]
    fn eval(&mut self) {
        let (low, x) = (F::from(self.eps), self.x);
        let high = F::from(1.0) - low;
        let clamped = F::select(low.gt(x), low, F::select(x.gt(high), high, x));
        let x = if self.eps == 0.0 { x } else { clamped };
        self.out = (x / (F::from(1.0) - x)).log();
    }
}
autobwd::samples!(
    Logit,
    [
        Logit { x: between(0.1, 0.9, [2, 3]), out: out(), eps: 1e-6 },
        Logit { x: given([4], [-0.5, 0.125, 0.625, 2.0]), out: out(), eps: 0.25 },
        Logit { x: between(0.1, 0.9, []), out: out(), eps: 0.0 },
        Logit { x: given([3], [0.0, 1.0, -1.0]), out: out(), eps: 0.0 }
            .not_a_derivative("it is infinite or undefined"),
    ]
);
