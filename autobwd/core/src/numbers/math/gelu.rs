//! `gelu` in both forms, with full relative accuracy where it is small.

use super::{MathFloat, erf::near, exact_sum, exp::reduced, horner};

/// Error 2^-26.0.
pub(super) const F32: [f64; 10] = [
    1.7035088e-04,
    7.141536e-04,
    -1.4409245e-03,
    -3.910744e-03,
    2.3848515e-02,
    -6.0979128e-02,
    1.005977e-01,
    -1.1306421e-01,
    7.634402e-02,
    3.7675303e-01,
];
/// Error 2^-54.4.
pub(super) const F64: [f64; 21] = [
    1.9032902252595953e-08,
    -1.4028271120192379e-08,
    -1.269584216253948e-07,
    1.9545573946586743e-08,
    6.447976739778576e-07,
    3.1179098670407284e-07,
    -3.197178302933175e-06,
    -3.106798526470737e-06,
    1.7473821174868593e-05,
    1.9291053951657133e-05,
    -0.00011511813577522633,
    -6.497725971544929e-05,
    0.0008931559266963441,
    -0.0008445631803636362,
    -0.005781679983832162,
    0.02685515693879158,
    -0.06338938747401893,
    0.10024424416154717,
    -0.1099364432010204,
    0.07326477751533728,
    0.37778580002260514,
];

/// Where the result is small, `-s cdf(-s)` with `s = |x|` is `exp(-s²/2)` times a polynomial of `(s - c) / (s + c)`,
/// after M. Shepherd and J. Laframboise (1981); it is scaled last, since `cdf(-s)` alone may be subnormal. Beyond 0,
/// `x cdf(x)` is that plus `x`. The error function in the middle.
#[inline(always)]
pub(in super::super) fn gelu<F: MathFloat>(x: F) -> F {
    let (half, end) = (F::from(0.5), F::from(F::CDF_END));
    let s = F::select(x.abs().gt(end), end, x.abs());
    let (square, rest) = s.exact_product(s);
    let (q, shifted) = reduced(-half * square, -half * rest);
    let scale = F::from(F::GELU_SCALE);
    let p = horner((s - scale) / (s + scale), F::GELU);
    let tail = p.mul_add(q, p).times_power_of_2(shifted);
    let outside = F::select(x.gt(F::from(0.0)), x - tail, tail);
    let middle = near(x * F::from(std::f64::consts::FRAC_1_SQRT_2)).mul_add(half * x, half * x);
    F::select(s.gt(F::from(0.9)), outside, middle).with_sign_of(x)
}

/// `(1 + tanh(u)) / 2` is `sigmoid(2 u)`, which is accurate where it is small only if its exponent has extra digits:
/// `2 u = s (a + b s²)` as a sum of two numbers. Scaled last, as above.
#[inline(always)]
pub(in super::super) fn gelu_tanh<F: MathFloat>(x: F) -> F {
    let (one, end) = (F::from(1.0), F::from(F::GELU_TANH_END));
    let s = F::select(x.abs().gt(end), end, x.abs());
    let ((a, a_rest), (b, b_rest)) = F::GELU_TANH;
    let (z, z_rest) = s.exact_product(s);
    let (p, p_rest) = F::from(b).exact_product(z);
    // Exact for either order of magnitude: the digits of `a` end at the last digit of the sum.
    let (sum, lost) = exact_sum(F::from(a), p);
    let lost = lost + F::from(b).mul_add(z_rest, F::from(b_rest).mul_add(z, p_rest + F::from(a_rest)));
    let (u, rest) = s.exact_product(sum);
    let (q, shifted) = reduced(-u, -s.mul_add(lost, rest));
    let e = (q + one).times_power_of_2(shifted);
    // At -∞ the factor is finite, so that the result is 0.
    let part = F::select((-end).gt(x), -end, x) / (one + e);
    F::select(x.gt(F::from(0.0)), part, q.mul_add(part, part).times_power_of_2(shifted)).with_sign_of(x)
}
