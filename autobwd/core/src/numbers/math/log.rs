//! Logarithms, by range reduction to √½ … √2 and a minimax polynomial.

use super::{MathFloat, horner};

/// Error 2^-35.0.
pub(super) const F32: [f64; 4] = [2.2924052e-01, 2.8574544e-01, 3.9999703e-01, 6.666667e-01];
/// Error 2^-58.8.
pub(super) const F64: [f64; 7] = [
    0.14740867767532437,
    0.15319938804806776,
    0.18183316568540087,
    0.22222203748764824,
    0.2857142868699394,
    0.3999999999969287,
    0.6666666666666686,
];

/// Any positive number as m · 2^e, with m between √½ and √2.
#[inline(always)]
pub(super) fn split<F: MathFloat>(x: F) -> (F, F) {
    let subnormal = F::from(F::TINY).gt(x);
    let (m, e) = F::select(subnormal, x * F::from(F::LIFT.0), x).split();
    (m, e - F::select(subnormal, F::from(F::LIFT.1), F::from(0.0)))
}

/// `ln(1 + f) = f - f²/2 + s (f²/2 + s² P(s²))` with `s = f / (2 + f)`, as in FreeBSD's `e_log.c`.
#[inline(always)]
pub(in super::super) fn log<F: MathFloat>(x: F) -> F {
    let (m, e) = split(x);
    let f = m - 1.0;
    let s = f / (f + 2.0);
    let z = s * s;
    let half = f * 0.5 * f;
    let small = s.mul_add(horner(z, F::LOG).mul_add(z, half), e * F::from(F::LN_2.1));
    let y = e.mul_add(F::from(F::LN_2.0), f - (half - small));
    let infinity = F::from(f64::INFINITY);
    let positive = F::select(x.equals(infinity), x, y);
    let other = F::select(x.equals(F::from(0.0)), -infinity, F::from(f64::NAN));
    F::select(x.gt(F::from(0.0)), positive, other)
}

/// The logarithm of the rounded sum, plus a first-order correction for the rounding error.
#[inline(always)]
pub(in super::super) fn log1p<F: MathFloat>(x: F) -> F {
    let one = F::from(1.0);
    let sum = one + x;
    // The rounding error of 1 + x; any small number where x is so large that it does not matter.
    let lost = F::select(x.gt(one), one - (sum - x), x - (sum - one));
    let rest = F::select(sum.gt(F::from(0.0)), lost / sum, F::from(0.0));
    let y = log(sum);
    F::select(x.equals(F::from(f64::INFINITY)), x, (y + rest).with_sign_of(x))
}
