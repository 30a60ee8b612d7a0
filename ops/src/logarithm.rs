//! Logarithms to other bases, and the logit, each defined by a formula.

use std::f64::consts::{LN_2, LN_10, LOG2_E, LOG10_E};

use autobwd::{Derived, Float, Pointwise, Var, check::*, op::DerivedFromInputs, register_op};

/// Binary logarithm: `out = log₂(x)`.
#[register_op(grad = Log2Grad, pointwise)]
pub struct Log2<V = Var> {
    /// Any shape.
    #[input]
    pub x: V,
    /// Same shape as `x`.
    #[output(inplace = x)]
    pub out: V,
}
impl<F: Float> Pointwise for Log2<F> {
    #[inline(always)]
    fn eval(&mut self) {
        self.out = self.x.log() * LOG2_E;
    }
}
autobwd::samples!(Log2, [Log2 { x: positive([2, 3]), out: out() }, Log2 { x: given([], [8.0]), out: out() }]);

/// `dx = dout / (ln(2) * x)`.
#[register_op(grad_of = Log2, grad = Derived, pointwise)]
pub struct Log2Grad<V = Var> {
    pub x: V,
    pub dout: V,
    #[output(inplace = dout)]
    pub dx: V,
}
impl<F: Float> Pointwise for Log2Grad<F> {
    fn eval(&mut self) {
        self.dx = self.dout / (self.x * LN_2);
    }
}

/// Decimal logarithm: `out = log₁₀(x)`.
#[register_op(grad = Log10Grad, pointwise)]
pub struct Log10<V = Var> {
    /// Any shape.
    #[input]
    pub x: V,
    /// Same shape as `x`.
    #[output(inplace = x)]
    pub out: V,
}
impl<F: Float> Pointwise for Log10<F> {
    #[inline(always)]
    fn eval(&mut self) {
        self.out = self.x.log() * LOG10_E;
    }
}
autobwd::samples!(
    Log10,
    [Log10 { x: positive([2, 3]), out: out() }, Log10 { x: given([], [100.0]), out: out() }]
);

/// `dx = dout / (ln(10) * x)`.
#[register_op(grad_of = Log10, grad = Derived, pointwise)]
pub struct Log10Grad<V = Var> {
    pub x: V,
    pub dout: V,
    #[output(inplace = dout)]
    pub dx: V,
}
impl<F: Float> Pointwise for Log10Grad<F> {
    fn eval(&mut self) {
        self.dx = self.dout / (self.x * LN_10);
    }
}

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
