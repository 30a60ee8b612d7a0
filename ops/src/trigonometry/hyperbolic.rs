//! Hyperbolic functions and their inverses.

use std::f64::consts::LN_2;

use autobwd::{Derived, Float, check::*};

use super::odd;
use crate::unary::unary_formula;

/// Where `exp(-x)` is below the precision of `exp(x)`.
const FAR: f64 = 20.0;
/// Where `1 + x²` rounds to `x²`.
const VAST: f64 = 1e8;

/// `sinh(x)`
#[inline(always)]
fn sinh<F: Float>(x: F) -> F {
    let size = x.abs();
    let (less, half) = (size.expm1(), (size * 0.5).exp());
    let near = (less + less / (less + 1.0)) * 0.5;
    odd(x, F::select(size.gt(F::from(FAR)), half * 0.5 * half, near))
}

/// `cosh(x)`
#[inline(always)]
fn cosh<F: Float>(x: F) -> F {
    let size = x.abs();
    let (power, half) = (size.exp(), (size * 0.5).exp());
    F::select(size.gt(F::from(FAR)), half * 0.5 * half, (power + F::from(1.0) / power) * 0.5)
}

unary_formula!(
    /// Hyperbolic sine: `out = sinh(x)`.
    Sinh(grad = SinhGrad), |x| sinh(x),
    samples [between(-3.0, 3.0, [2, 3]), given([4], [-0.0, 1e-9, -2.0, 3.0]), given([2], [-30.0, 30.0])],
    /// `dx = dout * cosh(x)`.
    SinhGrad(grad = Derived), |x, dout| dout * cosh(x)
);

unary_formula!(
    /// Hyperbolic cosine: `out = cosh(x)`.
    Cosh(grad = CoshGrad), |x| cosh(x),
    samples [between(-3.0, 3.0, [2, 3]), given([3], [1e-9, -2.0, 3.0]), given([2], [-30.0, 30.0])],
    /// `dx = dout * sinh(x)`.
    CoshGrad(grad = Derived), |x, dout| dout * sinh(x)
);

/// `ln(x + √(x² + 1))` of a positive number.
#[inline(always)]
fn positive_asinh<F: Float>(x: F) -> F {
    let near = (x + x * x / ((x * x + 1.0).sqrt() + 1.0)).log1p();
    F::select(x.gt(F::from(VAST)), x.log() + LN_2, near)
}

unary_formula!(
    /// Inverse hyperbolic sine: `out = ln(x + √(x² + 1))`.
    Asinh(grad = AsinhGrad), |x| odd(x, positive_asinh(x.abs())),
    samples [between(-3.0, 3.0, [2, 3]), given([4], [-0.0, 1e-9, -2.0, 1e5]), given([1], [1e30])],
    /// `dx = dout / √(x² + 1)`.
    AsinhGrad(grad = Derived), |x, dout| dout / (x * x + 1.0).sqrt()
);

unary_formula!(
    /// Inverse hyperbolic cosine: `out = ln(x + √(x² - 1))`; NaN below 1.
    Acosh(grad = AcoshGrad), |x| {
        let above = x - 1.0;
        let near = (above + (above * (x + 1.0)).sqrt()).log1p();
        let value = F::select(x.gt(F::from(VAST)), x.log() + LN_2, near);
        F::select(F::from(1.0).gt(x), F::from(f64::NAN), value)
    },
    samples [between(1.5, 3.0, [2, 3]), given([2], [2.0, 9.0]), given([1], [1e30])],
    /// `dx = dout / √(x² - 1)`.
    AcoshGrad(grad = Derived), |x, dout| dout / ((x - 1.0) * (x + 1.0)).sqrt()
);

/// `ln((1 + x) / (1 - x)) / 2` of a positive number.
#[inline(always)]
fn positive_atanh<F: Float>(x: F) -> F {
    (x * 2.0 / (F::from(1.0) - x)).log1p() * 0.5
}

unary_formula!(
    /// Inverse hyperbolic tangent: `out = ln((1 + x) / (1 - x)) / 2`; NaN beyond ±1.
    Atanh(grad = AtanhGrad), |x| odd(x, positive_atanh(x.abs())),
    samples [between(-0.9, 0.9, [2, 3]), given([3], [-0.0, 1e-9, 0.95]), uniform([])],
    /// `dx = dout / (1 - x²)`.
    AtanhGrad(grad = Derived), |x, dout| dout / ((F::from(1.0) - x) * (x + 1.0))
);
