//! Error function and normal distribution, by minimax polynomials.

use super::{
    MathFloat,
    exp::{NONE, reduced},
    horner, two_sum,
};

/// Error 2^-25.8.
pub(super) const NEAR_F32: [f64; 6] =
    [-5.9802143e-04, 4.991762e-03, -2.6766231e-02, 1.1281827e-01, -3.7612498e-01, 1.2837915e-01];
/// Error 2^-55.7.
pub(super) const NEAR_F64: [f64; 12] = [
    -7.577676086662521e-10,
    1.3600861865744412e-08,
    -1.6180436134839587e-07,
    1.6443705527141602e-06,
    -1.4924431599701092e-05,
    0.0001205527885739731,
    -0.0008548325435607796,
    0.005223977595840955,
    -0.026866170641869812,
    0.11283791670936541,
    -0.3761263890318334,
    0.12837916709551256,
];
/// Error 2^-29.2.
pub(super) const FAR_F32: [f64; 7] = [
    1.9593113e-04,
    -3.043167e-03,
    2.2226756e-02,
    -1.0393133e-01,
    -6.371825e-01,
    -1.1276755e+00,
    -1.956889e-04,
];
/// Error 2^-55.1.
pub(super) const FAR_F64: [f64; 18] = [
    -5.295560097209917e-12,
    2.1875474789028576e-10,
    -4.1911742395261855e-09,
    4.927379754845751e-08,
    -3.951240980140982e-07,
    2.2579375566349354e-06,
    -9.186393381397006e-06,
    2.4529852107714584e-05,
    -2.4667587774987708e-05,
    -0.00012610651252548526,
    0.0007563114873067559,
    -0.0018979366608517692,
    0.00039310390579251023,
    0.019003113440973822,
    -0.10271043332042899,
    -0.6366410171917641,
    -1.1283746904455858,
    -4.386166576145597e-07,
];
/// Error 2^-29.7.
pub(super) const CDF_F32: [f64; 11] = [
    -4.631877e-05,
    -2.2205805e-04,
    1.7093962e-04,
    1.6370877e-03,
    -3.4912964e-03,
    -7.5429054e-03,
    6.0398147e-02,
    -1.8652156e-01,
    3.8713732e-01,
    -6.078966e-01,
    7.5528514e-01,
];
/// Error 2^-57.3.
pub(super) const CDF_F64: [f64; 23] = [
    -3.0283459471295465e-10,
    1.4321443084696356e-09,
    7.942150196113486e-09,
    -8.295264495507224e-09,
    -6.601176163636341e-08,
    4.088098933913705e-08,
    4.3288453904796435e-07,
    -3.3553747756582283e-07,
    -2.7689528365318927e-06,
    3.9803847837271765e-06,
    1.6681041387614515e-05,
    -4.976265491670972e-05,
    -5.9375674837976644e-05,
    0.0005448990333877558,
    -0.0007978694080023045,
    -0.002993376766704739,
    0.020795066800837005,
    -0.06911863870657012,
    0.16502036617033744,
    -0.31353315667129616,
    0.4953056159699773,
    -0.6653825028900567,
    0.769193049750063,
];

/// `erf(x)` near 0.
#[inline(always)]
pub(super) fn near<F: MathFloat>(x: F) -> F {
    horner(x * x, F::ERF_NEAR).mul_add(x, x)
}

/// A polynomial near 0, and `1 - exp(polynomial)` elsewhere, as by N. Juffa.
#[inline(always)]
pub(in super::super) fn erf<F: MathFloat>(x: F) -> F {
    let (one, end) = (F::from(1.0), F::from(F::ERF_RANGE.1));
    let t = F::select(x.abs().gt(end), end, x.abs());
    let (q, shifted) = reduced(horner(t, F::ERF_FAR), F::from(NONE));
    let far = one - (q + one) * F::power_of_2(shifted);
    F::select(t.gt(F::from(F::ERF_RANGE.0)), far.with_sign_of(x), near(x))
}

/// `exp(-s²/2)` times a polynomial on the side where the result is small, which preserves its relative accuracy: the
/// method of M. Shepherd and J. Laframboise (1981) for `erfc`. The error function in the middle.
#[inline(always)]
pub(in super::super) fn normal_cdf<F: MathFloat>(x: F) -> F {
    let (one, half, end) = (F::from(1.0), F::from(0.5), F::from(F::CDF_END));
    let s = F::select(x.abs().gt(end), end, x.abs());
    let (square, rest) = s.exact_product(s);
    let (q, shifted) = reduced(-half * square, -half * rest);
    let scale = F::from(F::CDF_SCALE);
    // The quotient has the relative rounding error of the sum.
    let (sum, lost) = two_sum(s, scale);
    let inverse = one / sum;
    let p = horner((s - scale) * inverse, F::CDF) / sum;
    let tail = p.mul_add(q - lost * inverse, p).times_power_of_2(shifted);
    let outside = F::select(x.gt(F::from(0.0)), one - tail, tail);
    let middle = near(x * F::from(std::f64::consts::FRAC_1_SQRT_2)).mul_add(half, half);
    F::select(s.gt(F::from(0.9)), outside, middle)
}
