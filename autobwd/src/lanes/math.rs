//! Elementary functions without branches, so that loops over them vectorise.

use super::float::{Float, Lane};

/// Polynomial with coefficients from the highest power down.
#[inline(always)]
fn horner<F: Float, const N: usize>(x: F, coefficients: [f64; N]) -> F {
    let mut sum = F::of(coefficients[0]);
    let mut i = 1;
    while i < N {
        sum = sum.mul_add(x, F::of(coefficients[i]));
        i += 1;
    }
    sum
}

pub(super) mod f32 {
    use super::{Float, Lane, horner};

    /// Below, `exp` is a subnormal number, which comes out as 0.
    const EXP_MIN: f64 = -87.336_54;
    /// Above, `exp` is infinite.
    const EXP_MAX: f64 = 88.722_83;

    /// Cephes' `expf`: reduction by multiples of ln 2 in two parts, a polynomial of degree 5, and the exponent put
    /// together from the bits of a sum with 1.5 · 2²³.
    #[inline(always)]
    pub(in super::super) fn exp<const FMA: bool>(x: Lane<f32, FMA>) -> Lane<f32, FMA> {
        type F<const FMA: bool> = Lane<f32, FMA>;
        let (low, high) = (F::of(EXP_MIN), F::of(EXP_MAX));
        let (under, over) = (low.gt(x), x.gt(high));
        let clamped = F::select(under, low, F::select(over, high, x));
        let magic = F::of(12_582_912.0);
        let shifted = clamped.mul_add(F::of(std::f64::consts::LOG2_E), magic);
        let n = shifted - magic;
        let r = n.mul_add(F::of(2.121_944_4e-4), n.mul_add(F::of(-0.693_359_375), clamped));
        let p = horner(
            r,
            [
                1.987_569_15e-4,
                1.398_199_950_7e-3,
                8.333_451_907_3e-3,
                4.166_579_589_4e-2,
                1.666_666_545_9e-1,
                0.5,
            ],
        );
        let y = p.mul_add(r * r, r) + F::of(1.0);
        // 2^n as two factors: n = 128 alone would be infinite.
        let bits = shifted.0.to_bits() << 23;
        let scale = Lane(f32::from_bits(bits.wrapping_add(0x3f00_0000)));
        let y = y * scale * F::of(2.0);
        F::select(over, F::of(f64::INFINITY), F::select(under, F::of(0.0), y))
    }

    /// Cephes' `logf`: exponent and a mantissa within √½ and √2 taken from the bits, a polynomial of degree 9.
    #[inline(always)]
    pub(in super::super) fn log<const FMA: bool>(x: Lane<f32, FMA>) -> Lane<f32, FMA> {
        type F<const FMA: bool> = Lane<f32, FMA>;
        let subnormal = F::of(f64::from(f32::MIN_POSITIVE)).gt(x);
        let scaled = F::select(subnormal, x * F::of(8_388_608.0), x);
        let bits = scaled.0.to_bits() as i32;
        let e = bits.wrapping_sub(0x3f35_04f3) >> 23;
        let mantissa = Lane(f32::from_bits(bits.wrapping_sub(e << 23) as u32));
        let e = Lane(e as f32) - F::select(subnormal, F::of(23.0), F::of(0.0));
        let f = mantissa - F::of(1.0);
        let z = f * f;
        let p = horner(
            f,
            [
                7.037_683_629_2e-2,
                -1.151_461_031e-1,
                1.167_699_874e-1,
                -1.242_014_084_6e-1,
                1.424_932_278_7e-1,
                -1.666_805_766_5e-1,
                2.000_071_476_5e-1,
                -2.499_999_399_3e-1,
                3.333_333_117_4e-1,
            ],
        );
        let y = e.mul_add(F::of(-2.121_944_4e-4), p * f * z);
        let y = z.mul_add(F::of(-0.5), y);
        let y = e.mul_add(F::of(0.693_359_375), f + y);
        let infinite = x.equals(F::of(f64::INFINITY));
        let y = F::select(infinite, x, y);
        let y = F::select(x.equals(F::of(0.0)), F::of(f64::NEG_INFINITY), y);
        // Negative numbers and NaN: neither above nor equal to 0.
        let defined = F::select(
            x.gt(F::of(0.0)),
            F::of(1.0),
            F::select(x.equals(F::of(0.0)), F::of(1.0), F::of(f64::NAN)),
        );
        y * defined
    }

    /// A rational function on [−7.9, 7.9], beyond which the result rounds to ±1 (coefficients as in Eigen and XLA).
    #[inline(always)]
    pub(in super::super) fn tanh<const FMA: bool>(x: Lane<f32, FMA>) -> Lane<f32, FMA> {
        type F<const FMA: bool> = Lane<f32, FMA>;
        let limit = F::of(7.905_311);
        let x = F::select(x.gt(limit), limit, F::select((-limit).gt(x), -limit, x));
        let q = x * x;
        let p = horner(
            q,
            [
                -2.760_768_477_423_55e-16,
                2.000_187_904_824_77e-13,
                -8.604_671_522_137_35e-11,
                5.122_297_090_371_14e-8,
                1.485_722_357_179_79e-5,
                6.372_619_288_754_36e-4,
                4.893_524_558_917_86e-3,
            ],
        );
        let d = horner(
            q,
            [1.198_258_394_667_02e-6, 1.185_347_056_866_54e-4, 2.268_434_632_439e-3, 4.893_525_185_543_85e-3],
        );
        p * x / d
    }
}

/// In double precision, `std`'s functions.
pub(super) mod f64 {
    use super::Lane;

    #[inline(always)]
    pub(in super::super) fn exp<const FMA: bool>(x: Lane<f64, FMA>) -> Lane<f64, FMA> {
        Lane(x.0.exp())
    }
    #[inline(always)]
    pub(in super::super) fn log<const FMA: bool>(x: Lane<f64, FMA>) -> Lane<f64, FMA> {
        Lane(x.0.ln())
    }
    #[inline(always)]
    pub(in super::super) fn tanh<const FMA: bool>(x: Lane<f64, FMA>) -> Lane<f64, FMA> {
        Lane(x.0.tanh())
    }
}
