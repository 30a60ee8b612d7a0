//! Powers, by a logarithm in extended precision and the exponential function.

use super::{
    Float, Lane, MathFloat, SelectMask, exact_sum,
    exp::{clamped, exp_of_sum},
    horner,
    log::split,
};

type F<const FMA: bool> = Lane<f64, FMA>;

/// `(2 artanh(√z) / √z - 2 - 2/3 z) / z²` for √z up to 0.1716, error 2^-71.
const LOG: [f64; 8] = [
    0.12012134963411353,
    0.11673696909958116,
    0.13336273150850272,
    0.15384561188219567,
    0.18181818750155426,
    0.22222222219081783,
    0.2857142857143596,
    0.39999999999999997,
];
/// 2/3 in two parts.
const TWO_THIRDS: (f64, f64) = (0.666_666_666_666_666_6, 3.700_743_415_417_188e-17);

/// The logarithm of a positive number as a sum of two numbers, with some 64 bits.
///
/// As in FreeBSD's `e_pow.c`: `ln(m · 2^e) = e ln 2 + 2 artanh(s)` with `s = (m - 1) / (m + 1)`, the first two powers
/// of s and the sum in twice the digits.
#[inline(always)]
fn precise_log<const FMA: bool>(x: F<FMA>) -> (F<FMA>, F<FMA>) {
    let (m, e) = split(x);
    let (one, two) = (F::from(1.0), F::from(2.0));
    let f = m - one;
    let d = m + one;
    let d_rest = m - (d - one);
    let s = f / d;
    let (p, p_rest) = s.exact_product(d);
    let s_rest = (f - p - p_rest - s * d_rest) / d;
    let (z, z_rest) = s.exact_product(s);
    let z_rest = (two * s).mul_add(s_rest, z_rest);
    let (c, c_rest) = exact_sum(F::from(TWO_THIRDS.0), z * horner(z, &LOG));
    let c_rest = c_rest + F::from(TWO_THIRDS.1);
    let (g, g_rest) = z.exact_product(c);
    let g_rest = z.mul_add(c_rest, z_rest.mul_add(c, g_rest));
    let (h, h_rest) = s.exact_product(g);
    let h_rest = s.mul_add(g_rest, s_rest.mul_add(g, h_rest));
    let (a, a_rest) = exact_sum(two * s, h);
    let a_rest = a_rest + two.mul_add(s_rest, h_rest);
    let (b, b_rest) = exact_sum(e * F::from(F::<FMA>::LN_2.0), a);
    let b_rest = b_rest + e.mul_add(F::from(F::<FMA>::LN_2.1), a_rest);
    let (sum, rest) = exact_sum(b, b_rest);
    // The cases 0, infinity and NaN.
    let infinity = F::from(f64::INFINITY);
    let finite = infinity.gt(x);
    let zero = x.equals(F::from(0.0));
    let sum = F::select(zero, -infinity, F::select(finite, sum, x));
    (sum, F::select(finite & !zero, rest, F::from(0.0)))
}

#[inline(always)]
fn is_whole<const FMA: bool>(x: F<FMA>) -> SelectMask<F<FMA>> {
    let shift = F::from(4_503_599_627_370_496.0);
    x.gt(shift) | ((x + shift) - shift).equals(x)
}

/// `x^y` from `|x|^y`: the special cases of IEEE 754.
#[inline(always)]
fn with_sign<const FMA: bool>(x: F<FMA>, y: F<FMA>, power: F<FMA>) -> F<FMA> {
    let (one, zero, infinity) = (F::from(1.0), F::from(0.0), F::from(f64::INFINITY));
    let whole = is_whole(y.abs());
    let odd = whole & !is_whole(y.abs() * 0.5);
    let power = F::select(odd, power.with_sign_of(x), power);
    let undefined = zero.gt(x) & x.gt(-infinity) & !whole;
    let power = F::select(undefined, F::from(f64::NAN), power);
    let is_one = y.equals(zero) | x.equals(one) | (x.equals(-one) & y.abs().equals(infinity));
    F::select(is_one, one, power)
}

#[inline(always)]
pub(in super::super) fn pow<const FMA: bool>(x: F<FMA>, y: F<FMA>) -> F<FMA> {
    let (log, log_rest) = precise_log(x.abs());
    // For larger exponents, the result is 0, 1 or infinite, and products could overflow.
    let near = clamped(y, (-1e300, 1e300));
    let (product, rest) = near.exact_product(log);
    let rest = near.mul_add(log_rest, rest);
    // Where the result is 0, infinite or NaN, `rest` is not a number.
    let rest = F::select(F::from(1e3).gt(product.abs()), rest, F::from(0.0));
    with_sign(x, y, exp_of_sum(product, rest))
}

/// Computed in double precision, where no digits are lost.
#[inline(always)]
pub(in super::super) fn pow_in_double<const FMA: bool>(
    x: Lane<f32, FMA>,
    y: Lane<f32, FMA>,
) -> Lane<f32, FMA> {
    let (x, y) = (Lane::<f64, FMA>(x.0.into()), Lane(y.0.into()));
    let power = super::exp(y * super::log(x.abs()));
    Lane(with_sign(x, y, power).0 as f32)
}
