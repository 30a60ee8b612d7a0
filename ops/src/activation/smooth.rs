//! Smooth rectifiers (`gelu`, `silu`, `swish`, `softplus`, `mish`, `softsign`), each defined by a formula.

use autobwd::{Derived, Float, Pointwise, Var, check::*, op::DerivedFromInputs, register_op};

use crate::unary::unary_formula;

/// GELU, `x * Φ(x)` with the standard normal distribution function (Hendrycks and Gimpel, 2016):
/// `out = x * (1 + erf(x / √2)) / 2`, or `x * (1 + tanh(√(2 / π) * (x + 0.044715 * x³))) / 2` if `approximate`.
#[register_op(grad = DerivedFromInputs, pointwise)]
pub struct Gelu<V = Var> {
    /// Any shape.
    #[input]
    pub x: V,
    /// Same shape as `x`.
    #[output(inplace = x)]
    pub out: V,
    /// Use the `tanh` approximation.
    #[attr(default = false)]
    pub approximate: bool,
}
impl<F: Float> Pointwise for Gelu<F> {
    // Too long to be inlined without the attribute; only inlined code is vectorised.
    #[inline(always)]
    fn eval(&mut self) {
        self.out = if self.approximate { self.x.gelu_tanh() } else { self.x.gelu() };
    }
}
autobwd::samples!(
    Gelu,
    [
        Gelu { x: between(-3.0, 3.0, [2, 3]), out: out(), approximate: false },
        Gelu { x: between(-3.0, 3.0, [2, 3]), out: out(), approximate: true },
        Gelu { x: given([3], [-9.0, 0.0, 9.0]), out: out(), approximate: false },
    ]
);

unary_formula!(
    /// Sigmoid linear unit: `out = x * sigmoid(x)`.
    Silu(grad = Derived), |x| x * x.sigmoid(),
    samples [between(-3.0, 3.0, [2, 3]), given([3], [-50.0, 0.0, 50.0])]
);

/// Swish: `out = x * sigmoid(beta * x)` (Ramachandran et al., 2017).
#[register_op(grad = DerivedFromInputs, pointwise)]
pub struct Swish<V = Var> {
    /// Any shape.
    #[input]
    pub x: V,
    /// Same shape as `x`.
    #[output(inplace = x)]
    pub out: V,
    /// Factor of `x`; with 1, the default, this is `silu`.
    #[attr(default = 1.0)]
    pub beta: f32,
}
impl<F: Float> Pointwise for Swish<F> {
    #[inline(always)]
    fn eval(&mut self) {
        self.out = self.x * (self.x * F::from(self.beta)).sigmoid();
    }
}
autobwd::samples!(
    Swish,
    [
        Swish { x: between(-3.0, 3.0, [2, 3]), out: out(), beta: 1.0 },
        Swish { x: between(-3.0, 3.0, [2, 3]), out: out(), beta: -0.75 },
    ]
);

/// `ln(1 + exp(x))`, or `x` above the threshold.
#[inline(always)]
fn softplus<F: Float>(x: F, threshold: f32) -> F {
    // Above 40, both are equal in every dtype.
    let threshold = F::from(f64::from(threshold).min(40.0));
    F::select(x.gt(threshold), x, x.exp().log1p())
}

/// Softplus: `out = ln(1 + exp(beta * x)) / beta`, or `x` where `beta * x > threshold`.
#[register_op(grad = DerivedFromInputs, pointwise)]
pub struct Softplus<V = Var> {
    /// Any shape.
    #[input]
    pub x: V,
    /// Same shape as `x`.
    #[output(inplace = x)]
    pub out: V,
    /// Factor of `x`; larger values are closer to ReLU.
    #[attr(default = 1.0)]
    pub beta: f32,
    /// Value of `beta * x` above which `out = x`.
    #[attr(default = 20.0)]
    pub threshold: f32,
}
impl<F: Float> Pointwise for Softplus<F> {
    #[inline(always)]
    fn eval(&mut self) {
        // A constant factor, so that derivatives at infinities are no products of 0 and infinity.
        let beta = f64::from(self.beta);
        self.out = softplus(self.x * beta, self.threshold) / beta;
    }
}
autobwd::samples!(
    Softplus,
    [
        Softplus { x: between(-3.0, 3.0, [2, 3]), out: out(), beta: 1.0, threshold: 20.0 },
        Softplus { x: between(-3.0, 3.0, [2, 3]), out: out(), beta: -1.5, threshold: 100.0 },
        Softplus { x: given([4], [-900.0, 0.0, 3.0, 900.0]), out: out(), beta: 1.0, threshold: 1000.0 },
        Softplus { x: given([3], [0.25, 1.0, 2.0]), out: out(), beta: 2.0, threshold: 1.0 }
            .not_a_derivative("it jumps at the threshold"),
    ]
);

/// Mish: `out = x * tanh(ln(1 + exp(x)))` (Misra, 2019), with `x` for the logarithm where `x > threshold`.
#[register_op(grad = DerivedFromInputs, pointwise)]
pub struct Mish<V = Var> {
    /// Any shape.
    #[input]
    pub x: V,
    /// Same shape as `x`.
    #[output(inplace = x)]
    pub out: V,
    /// Value of `x` above which the logarithm is `x`.
    #[attr(default = 20.0)]
    pub threshold: f32,
}
impl<F: Float> Pointwise for Mish<F> {
    #[inline(always)]
    fn eval(&mut self) {
        self.out = self.x * softplus(self.x, self.threshold).tanh();
    }
}
autobwd::samples!(
    Mish,
    [
        Mish { x: between(-3.0, 3.0, [2, 3]), out: out(), threshold: 20.0 },
        Mish { x: given([3], [-50.0, 0.0, 50.0]), out: out(), threshold: 30.0 },
    ]
);

unary_formula!(
    /// Softsign: `out = x / (1 + |x|)`.
    Softsign(grad = DerivedFromInputs), |x| x / (x.abs() + 1.0),
    samples [
        away_from(0.0, [2, 3]),
        given([], [0.0]) => not_a_derivative("its second derivative jumps at 0"),
    ]
);
