//! Branch-free elementary functions, so that loops over them vectorise: argument reduction and minimax polynomials.
//!
//! Both dtypes share the source and differ in their polynomials. These come from Remez' algorithm, computed with 45
//! digits; coefficients are rounded one after the other from the lowest up, and the rest are fitted again each time.

mod angle;
mod erf;
mod exp;
mod gelu;
mod log;
mod pow;
#[cfg(test)]
mod tests;

pub(super) use angle::{cos, cos_in_double, sin, sin_in_double};
pub(super) use erf::{erf, normal_cdf};
pub(super) use exp::{exp, expm1, sigmoid, tanh, tanh_by_exp};
pub(super) use gelu::{gelu, gelu_tanh};
pub(super) use log::{log, log1p};
pub(super) use pow::{pow, pow_in_double};

use super::float::{Float, Lane, SelectMask};

/// A number with access to its bits, and the polynomials for its precision.
pub(super) trait MathFloat: Float<Mask = bool> {
    /// 1.5 · 2^p, with p mantissa bits: a sum with it is rounded to an integer, which is in its lowest bits. (A cast to
    /// an integer would saturate, which takes five times as long.)
    const MAGIC: f64;
    /// The smallest normal number.
    const TINY: f64;
    /// A factor that makes every subnormal number normal, and the exponent of that factor.
    const LIFT: (f64, f64);
    /// ln 2 in two parts; products of the first with exponents are exact.
    const LN_2: (f64, f64);
    /// Where `exp` is 0 and infinite, with some margin.
    const EXP_RANGE: (f64, f64);
    /// Where `tanh` starts to round to 1.
    const TANH_END: f64;
    /// `(exp(r) - 1 - r) / r²` for r within ± ln 2 / 2.
    const EXP: &'static [f64];
    /// `(2 artanh(√z) / √z - 2) / z` for √z up to 0.1716.
    const LOG: &'static [f64];
    /// `erf(√z) / √z - 1` for √z up to the first bound of `ERF_RANGE`.
    const ERF_NEAR: &'static [f64];
    /// `ln(1 - erf(t))` between the bounds of `ERF_RANGE`.
    const ERF_FAR: &'static [f64];
    /// The start of `ERF_FAR`, and where `erf` starts to round to 1.
    const ERF_RANGE: (f64, f64);
    /// `cdf(-s) exp(s²/2) (s + CDF_SCALE)` as a function of `(s - CDF_SCALE) / (s + CDF_SCALE)`.
    const CDF: &'static [f64];
    /// As above.
    const CDF_SCALE: f64;
    /// Where the normal distribution's tail starts to round to 0, with some margin.
    const CDF_END: f64;
    /// `s cdf(-s) exp(s²/2)` as a function of `(s - GELU_SCALE) / (s + GELU_SCALE)`, for s from 0.9 to `CDF_END`.
    const GELU: &'static [f64];
    /// As above; it makes the polynomial's lowest coefficient nearly exact.
    const GELU_SCALE: f64;
    /// `2 √(2 / π)` and 0.044715 times it, each in two parts. The first has few digits: its sum with the second times
    /// s² has no lower ones, for s up to `GELU_TANH_END`.
    const GELU_TANH: ((f64, f64), (f64, f64));
    /// Where `s / (1 + exp(s (a + b s²)))` with these numbers starts to round to 0, with some margin.
    const GELU_TANH_END: f64;

    /// The absolute value with another number's sign.
    fn with_sign_of(self, sign: Self) -> Self;
    /// 2^n from `n + MAGIC`, for n an exponent of normal numbers.
    fn power_of_2(shifted: Self) -> Self;
    /// `self · 2^n` from `n + MAGIC`, rounded once: the result may be subnormal or infinite.
    fn times_power_of_2(self, shifted: Self) -> Self;
    /// A positive normal number as m · 2^e, with m between √½ and √2.
    fn split(self) -> (Self, Self);
    /// The product and its rounding error.
    fn exact_product(self, other: Self) -> (Self, Self);
}

macro_rules! real {
    ($t:ident, $u:ident, $mantissa:literal, { $($consts:tt)* }) => {
        impl<const FMA: bool> MathFloat for Lane<$t, FMA> {
            const MAGIC: f64 = 1.5 * (1_u64 << $mantissa) as f64;
            const TINY: f64 = $t::MIN_POSITIVE as f64;
            const LIFT: (f64, f64) = ((1_u64 << $mantissa) as f64, $mantissa as f64);
            $($consts)*

            #[inline(always)]
            fn with_sign_of(self, sign: Self) -> Self {
                Lane(self.0.copysign(sign.0))
            }
            #[inline(always)]
            fn power_of_2(shifted: Self) -> Self {
                const BIAS: $u = $t::MAX_EXP as $u - 1;
                Lane($t::from_bits(shifted.0.to_bits().wrapping_add(BIAS) << $mantissa))
            }
            #[inline(always)]
            fn times_power_of_2(self, shifted: Self) -> Self {
                const BIAS: $u = $t::MAX_EXP as $u - 1;
                // Twice the bias, so that half of it is also positive.
                let n = shifted.0.to_bits().wrapping_sub((Self::MAGIC as $t).to_bits()).wrapping_add(2 * BIAS);
                let half = n >> 1;
                let (one, other) = (half << $mantissa, n.wrapping_sub(half) << $mantissa);
                Lane(self.0 * $t::from_bits(one) * $t::from_bits(other))
            }
            #[inline(always)]
            fn split(self) -> (Self, Self) {
                const ROOT: $u = std::$t::consts::FRAC_1_SQRT_2.to_bits();
                const ONE: $u = (1.0 as $t).to_bits();
                const WHOLE: $t = (1_u64 << $mantissa) as $t;
                let bits = self.0.to_bits().wrapping_add(ONE - ROOT);
                let mantissa = (bits & ((1 << $mantissa) - 1)) + ROOT;
                let exponent = $t::from_bits((bits >> $mantissa) | WHOLE.to_bits());
                (Lane($t::from_bits(mantissa)), Lane(exponent - (WHOLE + ($t::MAX_EXP - 1) as $t)))
            }
            #[inline(always)]
            fn exact_product(self, other: Self) -> (Self, Self) {
                let product = self * other;
                (product, self.mul_add(other, -product))
            }
        }
    };
}

real!(f32, u32, 23, {
    const LN_2: (f64, f64) = (0.693_359_375, -2.121_944_4e-4);
    const EXP_RANGE: (f64, f64) = (-104.0, 89.0);
    const TANH_END: f64 = 9.02;
    const EXP: &'static [f64] = &exp::F32;
    const LOG: &'static [f64] = &log::F32;
    const ERF_NEAR: &'static [f64] = &erf::NEAR_F32;
    const ERF_FAR: &'static [f64] = &erf::FAR_F32;
    const ERF_RANGE: (f64, f64) = (0.93, 4.0);
    const CDF: &'static [f64] = &erf::CDF_F32;
    const CDF_SCALE: f64 = 4.0;
    const CDF_END: f64 = 14.5;
    const GELU: &'static [f64] = &gelu::F32;
    const GELU_SCALE: f64 = 3.90625;
    const GELU_TANH: ((f64, f64), (f64, f64)) =
        ((1.595_768_928_527_832, 1.930_778_986_8e-7), (0.071_354_813_873_767_85, 2.398_832_396e-9));
    const GELU_TANH_END: f64 = 11.0;
});
real!(f64, u64, 52, {
    const LN_2: (f64, f64) = (6.931_471_803_691_238e-1, 1.908_214_929_270_587_7e-10);
    const EXP_RANGE: (f64, f64) = (-746.0, 710.0);
    const TANH_END: f64 = 20.0;
    const EXP: &'static [f64] = &exp::F64;
    const LOG: &'static [f64] = &log::F64;
    const ERF_NEAR: &'static [f64] = &erf::NEAR_F64;
    const ERF_FAR: &'static [f64] = &erf::FAR_F64;
    const ERF_RANGE: (f64, f64) = (1.0, 6.0);
    const CDF: &'static [f64] = &erf::CDF_F64;
    const CDF_SCALE: f64 = 5.0;
    const CDF_END: f64 = 39.0;
    const GELU: &'static [f64] = &gelu::F64;
    const GELU_SCALE: f64 = 4.015625;
    const GELU_TANH: ((f64, f64), (f64, f64)) = (
        (1.595_769_121_605_734_1, -3.430_362_161_966_579e-15),
        (0.071_354_816_272_600_25, -6.175_149_918_155_315e-19),
    );
    const GELU_TANH_END: f64 = 22.0;
});

/// Polynomial by Horner's rule, with coefficients from the highest power down.
#[inline(always)]
fn horner<F: Float>(x: F, coefficients: &'static [f64]) -> F {
    let mut sum = F::from(coefficients[0]);
    let mut i = 1;
    while i < coefficients.len() {
        sum = sum.mul_add(x, F::from(coefficients[i]));
        i += 1;
    }
    sum
}

/// Sum and rounding error, for a number and one of smaller magnitude (Dekker's algorithm).
#[inline(always)]
fn exact_sum<F: Float>(large: F, small: F) -> (F, F) {
    let sum = large + small;
    (sum, small - (sum - large))
}

/// As [`exact_sum`], for any order of magnitudes (Knuth's algorithm).
#[inline(always)]
fn two_sum<F: Float>(a: F, b: F) -> (F, F) {
    let sum = a + b;
    let from_b = sum - a;
    (sum, (a - (sum - from_b)) + (b - from_b))
}
