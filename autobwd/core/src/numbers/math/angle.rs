//! Sine and cosine, by Payne-Hanek argument reduction and minimax polynomials.

use super::{Float, Lane, MathFloat, SelectMask, exact_sum, horner, two_sum};

/// 2 / π in 32-bit words from the binary point on, after 64 zero bits.
const TWO_OVER_PI: [u32; 42] = [
    0,
    0,
    0xa2f9_836e,
    0x4e44_1529,
    0xfc27_57d1,
    0xf534_ddc0,
    0xdb62_9599,
    0x3c43_9041,
    0xfe51_63ab,
    0xdebb_c561,
    0xb724_6e3a,
    0x424d_d2e0,
    0x0649_2eea,
    0x09d1_921c,
    0xfe1d_eb1c,
    0xb129_a73e,
    0xe882_35f5,
    0x2ebb_4484,
    0xe99c_7026,
    0xb45f_7e41,
    0x3991_d639,
    0x8353_39f4,
    0x9c84_5f8b,
    0xbdf9_283b,
    0x1ff8_97ff,
    0xde05_980f,
    0xef2f_118b,
    0x5a0a_6d1f,
    0x6d36_7ecf,
    0x27cb_09b7,
    0x4f46_3f66,
    0x9e5f_ea2d,
    0x7527_bac7,
    0xebe5_f17b,
    0x3d07_39f7,
    0x8a52_92ea,
    0x6bfb_5fb1,
    0x1f8d_5d08,
    0x5603_3046,
    0xfc7b_6bab,
    0xf0cf_bc20,
    0x9af4_361d,
];

/// 2 / π from bit 16 k on, for k from 0 to 63, in four parts of 53 bits.
const PARTS: [[f64; 64]; 4] = {
    let mut parts = [[0.0; 64]; 4];
    let mut unit = 1.0;
    let mut j = 0;
    while j < 4 {
        unit /= (1_u64 << 53) as f64;
        let mut k = 0;
        while k < 64 {
            let (mut bits, mut at) = (0_u64, 64 + 16 * k + 53 * j);
            let end = at + 53;
            while at < end {
                bits = bits << 1 | (TWO_OVER_PI[at / 32] >> (31 - at % 32) & 1) as u64;
                at += 1;
            }
            parts[j][k] = bits as f64 * unit;
            k += 1;
        }
        j += 1;
    }
    parts
};

/// Payne-Hanek argument reduction, for any finite number: the multiple of π/2 nearest to the angle's magnitude, modulo
/// 4, and the remainder.
#[inline(always)]
fn reduced_single<const FMA: bool>(x: Lane<f32, FMA>) -> (u32, Lane<f32, FMA>) {
    let pick = |mask: bool, yes: u32, no: u32| std::hint::select_unpredictable(mask, yes, no);
    let bits = x.0.to_bits() & 0x7fff_ffff;
    // x = m · 2^(e - 150). Multiples of 4 are dropped from m · 2^(e - 150) · 2/π: the window of 2/π starts e - 152 bits
    // after the point, and is 96 bits wide.
    let (e, m) = (bits >> 23, u64::from(bits & 0x007f_ffff | 0x0080_0000));
    let at = e.wrapping_sub(152 - 64);
    let (far, middle, near) = (at & 128 != 0, at & 64 != 0, at & 32 != 0);
    let either = |i: usize| pick(near, TWO_OVER_PI[i + 1], TWO_OVER_PI[i]);
    let word = |i: usize| pick(far, either(i + 4), pick(middle, either(i + 2), either(i)));
    let shift = at & 31;
    let window = |i: usize| u64::from((word(i) << shift) | (word(i + 1) >> 1 >> (31 - shift)));
    let low = m * window(1) + ((m * window(2)) >> 32);
    let high = (m as u32).wrapping_mul(window(0) as u32).wrapping_add((low >> 32) as u32);
    // `high` is the product in units of 2^-30, `low` the bits after it.
    let quadrant = high.wrapping_add(1 << 29) >> 30;
    let fraction = (high << 2 | (low as u32) >> 30) as i32;
    let rest = ((low as u32) << 2 >> 1) as i32;
    let unit = (
        std::f64::consts::FRAC_PI_2 / (1_u64 << 32) as f64,
        std::f64::consts::FRAC_PI_2 / (1_u64 << 63) as f64,
    );
    let r =
        Lane::<f32, FMA>(fraction as f32).mul_add(Lane::from(unit.0), Lane(rest as f32) * Lane::from(unit.1));
    // A number this small is its own sine; the window would start too early.
    let small = 0x3900_0000 > bits;
    let r = Float::select(SelectMask(small), Lane(f32::from_bits(bits)), r);
    (pick(small, 0, quadrant), Float::select(SelectMask(bits >= 0x7f80_0000), Lane::from(f64::NAN), r))
}

/// Sine or cosine of `r` starting in a quadrant, negative if `sign` is set.
#[inline(always)]
fn at_quadrant_single<const FMA: bool>(quadrant: u32, r: Lane<f32, FMA>, sign: u32) -> Lane<f32, FMA> {
    type F<const FMA: bool> = Lane<f32, FMA>;
    let z = r * r;
    let sin = horner(z, &[-1.9526009e-04, 8.33226e-03, -1.6666657e-01]).mul_add(z * r, r);
    let cos = horner(z, &[2.4429533e-05, -1.3887295e-03, 4.1666646e-02])
        .mul_add(z, F::from(-0.5))
        .mul_add(z, F::from(1.0));
    let y = F::select(SelectMask(quadrant & 1 == 0), sin, cos);
    Lane(f32::from_bits(y.0.to_bits() ^ (quadrant & 2) << 30 ^ sign))
}

#[inline(always)]
pub(in super::super) fn sin<const FMA: bool>(x: Lane<f32, FMA>) -> Lane<f32, FMA> {
    let (quadrant, r) = reduced_single(x);
    at_quadrant_single(quadrant, r, x.0.to_bits() & 0x8000_0000)
}

#[inline(always)]
pub(in super::super) fn cos<const FMA: bool>(x: Lane<f32, FMA>) -> Lane<f32, FMA> {
    let (quadrant, r) = reduced_single(x);
    at_quadrant_single(quadrant.wrapping_add(1), r, 0)
}

/// As [`reduced_single`], in floating point; the remainder is the sum of two numbers.
#[inline(always)]
fn reduced_double<const FMA: bool>(x: Lane<f64, FMA>) -> (u64, Lane<f64, FMA>, Lane<f64, FMA>) {
    type F<const FMA: bool> = Lane<f64, FMA>;
    let bits = x.abs().0.to_bits();
    // x = y · 2^16k. Skipping the first 16 k bits of 2/π drops a multiple of 4.
    let start = 1023 + 54;
    let k = ((bits >> 52).max(start) - start) >> 4;
    let y = F::<FMA>::from(f64::from_bits(bits - (k << 56)));
    let part = |j: usize| F::<FMA>::from(PARTS[j][k as usize & 63]);
    let (a, b) = y.exact_product(part(0));
    let (c, d) = y.exact_product(part(1));
    let (e, f) = y.exact_product(part(2));
    let g = f + y * part(3);
    // |a| < 2^70, |b| and |c| < 2^17: remove multiples of 2^20, then of 4.
    let without =
        |x: F<FMA>, unit: f64| x - ((x + F::from(F::<FMA>::MAGIC * unit)) - F::from(F::<FMA>::MAGIC * unit));
    let (a, b, c) = (without(without(a, 1_048_576.0), 4.0), without(b, 4.0), without(c, 4.0));
    let shifted = a + b + c + F::from(F::<FMA>::MAGIC);
    let (sum, b) = two_sum(a - (shifted - F::from(F::<FMA>::MAGIC)), b);
    let (sum, c) = two_sum(sum, c);
    let (sum, d) = two_sum(sum, d);
    let (sum, e) = two_sum(sum, e);
    let (sum, rest) = exact_sum(sum, b + c + d + e + g);
    let quarter = (F::from(std::f64::consts::FRAC_PI_2), F::from(6.123_233_995_736_766e-17));
    let (r, r_rest) = sum.exact_product(quarter.0);
    let r_rest = r_rest + sum * quarter.1 + rest * quarter.0;
    // A number this small is its own sine; parts of its products could underflow.
    let small = F::<FMA>::from(1e-8).gt(x.abs());
    let finite = F::<FMA>::from(f64::INFINITY).gt(x.abs());
    let r = F::select(small, x.abs(), F::select(finite, r, F::from(f64::NAN)));
    let zero = F::from(0.0);
    (shifted.0.to_bits() & if small.0 { 0 } else { 3 }, r, F::select(small, zero, r_rest))
}

/// As [`at_quadrant_single`].
#[inline(always)]
fn at_quadrant_double<const FMA: bool>(
    quadrant: u64,
    r: Lane<f64, FMA>,
    rest: Lane<f64, FMA>,
    sign: u64,
) -> Lane<f64, FMA> {
    type F<const FMA: bool> = Lane<f64, FMA>;
    let (z, one, half) = (r * r, F::from(1.0), F::from(0.5));
    let s = horner(
        z,
        &[
            1.5900628955279345e-10,
            -2.5050832056681105e-08,
            2.755731422939961e-06,
            -0.0001984126983161615,
            0.008333333333325154,
            -0.16666666666666646,
        ],
    );
    let sin = r + s.mul_add(z * r, rest);
    let c = horner(
        z,
        &[
            -1.1364290554660618e-11,
            2.087582068685776e-09,
            -2.755731513919519e-07,
            2.480158729251479e-05,
            -0.0013888888888879635,
            0.04166666666666664,
        ],
    );
    let large = one - half * z;
    let cos = large + (((one - large) - half * z) + c.mul_add(z * z, -r * rest));
    let y = F::select(SelectMask(quadrant & 1 == 0), sin, cos);
    Lane(f64::from_bits(y.0.to_bits() ^ (quadrant & 2) << 62 ^ sign))
}

#[inline(always)]
pub(in super::super) fn sin_in_double<const FMA: bool>(x: Lane<f64, FMA>) -> Lane<f64, FMA> {
    let (quadrant, r, rest) = reduced_double(x);
    at_quadrant_double(quadrant, r, rest, x.0.to_bits() & 1 << 63)
}

#[inline(always)]
pub(in super::super) fn cos_in_double<const FMA: bool>(x: Lane<f64, FMA>) -> Lane<f64, FMA> {
    let (quadrant, r, rest) = reduced_double(x);
    at_quadrant_double(quadrant.wrapping_add(1), r, rest, 0)
}
