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

    /// `exp(x)` as `(1 + q) · half · 2` within its bounds.
    struct Exp<const FMA: bool> {
        under: bool,
        over: bool,
        q: Lane<f32, FMA>,
        half: Lane<f32, FMA>,
    }

    /// Cephes' `expf`: reduction by multiples of ln 2 in two parts, a polynomial of degree 5, and the exponent put
    /// together from the bits of a sum with 1.5 · 2²³.
    #[inline(always)]
    fn parts_of_exp<const FMA: bool>(x: Lane<f32, FMA>) -> Exp<FMA> {
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
        // 2^n as two factors: n = 128 alone would be infinite.
        let bits = shifted.0.to_bits() << 23;
        let half = Lane(f32::from_bits(bits.wrapping_add(0x3f00_0000)));
        Exp { under, over, q: p.mul_add(r * r, r), half }
    }

    #[inline(always)]
    pub(in super::super) fn exp<const FMA: bool>(x: Lane<f32, FMA>) -> Lane<f32, FMA> {
        type F<const FMA: bool> = Lane<f32, FMA>;
        let Exp { under, over, q, half } = parts_of_exp(x);
        let y = (q + F::of(1.0)) * half * F::of(2.0);
        F::select(over, F::of(f64::INFINITY), F::select(under, F::of(0.0), y))
    }

    /// Without the 1 where that would cost digits.
    #[inline(always)]
    pub(in super::super) fn expm1<const FMA: bool>(x: Lane<f32, FMA>) -> Lane<f32, FMA> {
        type F<const FMA: bool> = Lane<f32, FMA>;
        let (one, two) = (F::of(1.0), F::of(2.0));
        let Exp { over, q, half, .. } = parts_of_exp(x);
        let large = F::select(over, F::of(f64::INFINITY), (q + one) * half * two - one);
        F::select(x.gt(F::of(0.5)), large, (q * half).mul_add(two, half.mul_add(two, -one)))
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

    /// The logarithm of the rounded sum, and to first order what was rounded off.
    #[inline(always)]
    pub(in super::super) fn log1p<const FMA: bool>(x: Lane<f32, FMA>) -> Lane<f32, FMA> {
        type F<const FMA: bool> = Lane<f32, FMA>;
        let sum = F::of(1.0) + x;
        let rest = (x - (sum - F::of(1.0))) / sum;
        // At −1 and infinity nothing was rounded off.
        let whole = F::select(sum.equals(F::of(0.0)), sum, F::of(1.0));
        let whole = F::select(sum.equals(F::of(f64::INFINITY)), F::of(0.0), whole);
        F::select(whole.equals(F::of(0.0)), log(sum), log(sum) + rest)
    }

    /// Below 0.93 a polynomial, beyond it `1 - exp` of one (coefficients by N. Juffa).
    #[inline(always)]
    pub(in super::super) fn erf<const FMA: bool>(x: Lane<f32, FMA>) -> Lane<f32, FMA> {
        type F<const FMA: bool> = Lane<f32, FMA>;
        let one = F::of(1.0);
        let near = horner(
            x * x,
            [
                -5.967_617_03e-4,
                4.991_194_23e-3,
                -2.676_813_49e-2,
                1.128_199_25e-1,
                -3.761_253_36e-1,
                1.283_791_66e-1,
            ],
        );
        // From 4 on, the result rounds to 1.
        let limit = F::of(4.0);
        let t = F::select(x.abs().gt(limit), limit, x.abs());
        let far = horner(
            t,
            [
                -1.728_534_7e-5,
                3.831_971_26e-4,
                -3.883_964_38e-3,
                2.425_462_19e-2,
                -1.067_778_77e-1,
                -6.348_466_87e-1,
                -1.287_175_12e-1,
            ],
        );
        let far = one - exp(far.mul_add(t, -t));
        let far = F::select(F::of(0.0).gt(x), -far, far);
        F::select(t.gt(F::of(0.927_734_375)), far, near.mul_add(x, x))
    }
}

/// In double precision, `std`'s functions, and `libm`'s where it has none.
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
    #[inline(always)]
    pub(in super::super) fn expm1<const FMA: bool>(x: Lane<f64, FMA>) -> Lane<f64, FMA> {
        Lane(x.0.exp_m1())
    }
    #[inline(always)]
    pub(in super::super) fn log1p<const FMA: bool>(x: Lane<f64, FMA>) -> Lane<f64, FMA> {
        Lane(x.0.ln_1p())
    }
    #[inline(always)]
    pub(in super::super) fn erf<const FMA: bool>(x: Lane<f64, FMA>) -> Lane<f64, FMA> {
        Lane(libm::erf(x.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Largest distance of single from double precision, in units in the last place of the latter.
    fn distance<const FMA: bool>(
        single: impl Fn(Lane<f32, FMA>) -> Lane<f32, FMA>,
        double: impl Fn(f64) -> f64,
        low: f64,
        high: f64,
    ) -> f64 {
        const STEPS: i32 = 100_000;
        let at = |i: i32| {
            // Also closer and closer to 0.
            let x = (low + (high - low) * f64::from(i) / f64::from(STEPS)) as f32;
            [x, x * 1e-3, x * 1e-6]
        };
        let apart = |x: f32| {
            let (found, exact) = (single(Lane(x)).0, double(f64::from(x)));
            let unit = (exact as f32).abs().max(f32::MIN_POSITIVE);
            let unit = f64::from(unit.next_up()) - f64::from(unit);
            (f64::from(found) - exact).abs() / unit
        };
        (0..=STEPS).flat_map(at).filter(|x| f64::from(*x) > low).map(apart).fold(0.0, f64::max)
    }

    fn all<const FMA: bool>() {
        let within =
            |name: &str, found: f64, bound: f64| assert!(found < bound, "{name} with {FMA}: {found}");
        within("exp", distance::<FMA>(f32::exp, ::std::primitive::f64::exp, -86.0, 88.0), 2.0);
        within("log", distance::<FMA>(f32::log, ::std::primitive::f64::ln, 0.0, 1e4), 2.0);
        within("tanh", distance::<FMA>(f32::tanh, ::std::primitive::f64::tanh, -9.0, 9.0), 6.0);
        within("expm1", distance::<FMA>(f32::expm1, ::std::primitive::f64::exp_m1, -20.0, 88.0), 2.0);
        within("log1p", distance::<FMA>(f32::log1p, ::std::primitive::f64::ln_1p, -1.0, 1e4), 3.0);
        within("erf", distance::<FMA>(f32::erf, libm::erf, -6.0, 6.0), 2.0);
    }

    #[test]
    fn single_precision_is_double_precision_rounded() {
        all::<false>();
        all::<true>();
    }

    #[test]
    fn special_numbers_stay_what_they_are() {
        let at =
            |f: fn(Lane<::std::primitive::f32, false>) -> Lane<::std::primitive::f32, false>, x| f(Lane(x)).0;
        let infinity = ::std::primitive::f32::INFINITY;
        assert_eq!([at(f32::erf, infinity), at(f32::erf, -infinity), at(f32::erf, 0.0)], [1.0, -1.0, 0.0]);
        assert_eq!([at(f32::expm1, infinity), at(f32::expm1, -infinity)], [infinity, -1.0]);
        assert_eq!([at(f32::log1p, infinity), at(f32::log1p, -1.0)], [infinity, -infinity]);
        for f in [f32::erf, f32::expm1, f32::log1p] {
            assert!(at(f, ::std::primitive::f32::NAN).is_nan());
        }
        assert!(at(f32::log1p, -1.5).is_nan());
    }
}
