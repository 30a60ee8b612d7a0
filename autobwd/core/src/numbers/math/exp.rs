//! Exponential functions, sigmoid and hyperbolic tangent, by Cody-Waite reduction and minimax polynomials.

use super::{Float, Lane, MathFloat, horner};

/// Error 2^-25.9, relative to the result as all below.
pub(super) const F32: [f64; 5] = [1.39201e-03, 8.366723e-03, 4.166661e-02, 1.6666542e-01, 0.5];
/// Error 2^-57.4.
pub(super) const F64: [f64; 11] = [
    2.0892865841328983e-09,
    2.5110441019575728e-08,
    2.755733533986038e-07,
    2.7557242136561877e-06,
    2.4801587277349345e-05,
    0.00019841269887030188,
    0.0013888888888894547,
    0.008333333333321319,
    0.041666666666666664,
    0.16666666666666677,
    0.5,
];

/// No remainder: compilers drop the addition of -0, but not of 0.
pub(super) const NONE: f64 = -0.0;

/// `exp(x + rest) = (1 + q) · 2^n` as q and n + `MAGIC`: Cody-Waite reduction by multiples of ln 2 in two parts.
#[inline(always)]
pub(super) fn reduced<F: MathFloat>(x: F, rest: F) -> (F, F) {
    let magic = F::from(F::MAGIC);
    let shifted = x.mul_add(F::from(std::f64::consts::LOG2_E), magic);
    let n = shifted - magic;
    let r = n.mul_add(F::from(-F::LN_2.1), n.mul_add(F::from(-F::LN_2.0), x)) + rest;
    (horner(r, F::EXP).mul_add(r * r, r), shifted)
}

/// Clamps a number; NaN stays.
#[inline(always)]
pub(super) fn clamped<F: Float>(x: F, (low, high): (f64, f64)) -> F {
    let (low, high) = (F::from(low), F::from(high));
    F::select(x.gt(high), high, F::select(low.gt(x), low, x))
}

/// `exp(x + rest)` for a small `rest`.
#[inline(always)]
pub(super) fn exp_of_sum<F: MathFloat>(x: F, rest: F) -> F {
    let (q, shifted) = reduced(clamped(x, F::EXP_RANGE), rest);
    (q + 1.0).times_power_of_2(shifted)
}

#[inline(always)]
pub(in super::super) fn exp<F: MathFloat>(x: F) -> F {
    exp_of_sum(x, F::from(NONE))
}

/// The 1 is subtracted from 2^n, which is exact.
#[inline(always)]
pub(in super::super) fn expm1<F: MathFloat>(x: F) -> F {
    // Below, the result rounds to -1.
    let (q, shifted) = reduced(clamped(x, (-40.0, F::EXP_RANGE.1)), F::from(NONE));
    // 2^(n - 1), since 2^n may be infinite.
    let half = F::power_of_2(shifted - 1.0);
    let y = q.mul_add(half, half - 0.5) * 2.0;
    // Half of a subnormal number would lose digits.
    F::select(half.equals(F::from(0.5)), q, y).with_sign_of(x)
}

/// Uses `exp` of a number that is not positive, which preserves the accuracy of small results.
#[inline(always)]
pub(in super::super) fn sigmoid<F: MathFloat>(x: F) -> F {
    let (one, e) = (F::from(1.0), exp(-x.abs()));
    F::select(F::from(0.0).gt(x), e, one) / (one + e)
}

/// `expm1(2x) / (expm1(2x) + 2)`.
#[inline(always)]
pub(in super::super) fn tanh_by_exp<F: MathFloat>(x: F) -> F {
    let (one, double) = (F::from(1.0), x.abs() + x.abs());
    let (q, shifted) = reduced(clamped(double, (0.0, 2.0 * F::TANH_END)), F::from(NONE));
    let power = F::power_of_2(shifted);
    (q.mul_add(power, power - one) / q.mul_add(power, power + one)).with_sign_of(x)
}

/// `2 t / (1 + t²)` with `t = tanh(x/2)`, computed by a rational function up to where the result rounds to 1:
/// `2t = (x + x³ P(x²)) / (1 + x² Q(x²))`, fitted by Lawson's algorithm, error 2^-27. Rounding errors of t hardly
/// affect large results.
#[inline(always)]
pub(in super::super) fn tanh<const FMA: bool>(x: Lane<f32, FMA>) -> Lane<f32, FMA> {
    let end = Lane::<f32, FMA>::TANH_END;
    let x = clamped(x, (-end, end));
    let z = x * x;
    let p = horner(z, &[1.14252936e-04, 2.9773774e-02]).mul_add(z * x, x);
    // Both factors of the denominator, minus 1.
    let q = horner(z, &[1.2289738e-6, 1.2065456e-3, 1.1310707e-01]) * z;
    let (one, two) = (Lane::from(1.0), Lane::from(2.0));
    p.mul_add(q, p) / (one + q.mul_add(q + two, p * Lane::from(0.25) * p))
}
