//! 16-bit floating point numbers: stored in 16 bits, computed with in `f32`.
//!
//! Conversions are integer arithmetic without branches, so that loops over them are vectorised. Results are rounded
//! once, to the nearest number, ties to even. Numbers that are too large become infinite, and NaN stays NaN.

use half::{bf16, f16};

use super::Element;

/// A 16-bit floating point type.
pub trait HalfFloat: Element {
    /// The same number.
    fn single(self) -> f32;

    /// The nearest number.
    fn round(x: f32) -> Self;

    /// The nearest number, rounded once.
    #[inline(always)]
    fn round_double(x: f64) -> Self {
        Self::round(round_to_odd(x))
    }
}

/// A number whose last bit says whether anything was cut off: rounded again to two bits less, or fewer, it is the
/// nearest number to `x`.
#[inline(always)]
fn round_to_odd(x: f64) -> f32 {
    let near = x as f32;
    let back = f64::from(near);
    let cut = near.to_bits().wrapping_sub(u32::from(back.abs() > x.abs()));
    if back == x || x.is_nan() { near } else { f32::from_bits(cut | 1) }
}

const INFINITE: u32 = f32::INFINITY.to_bits();
const SIGN: u32 = 1 << 31;

impl HalfFloat for bf16 {
    #[inline(always)]
    fn single(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }

    #[inline(always)]
    fn round(x: f32) -> bf16 {
        let bits = x.to_bits();
        let near = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
        // A NaN whose last bits are cut off must not become infinite.
        let nan = bits | 1 << 22;
        bf16::from_bits(((if bits & !SIGN > INFINITE { nan } else { near }) >> 16) as u16)
    }
}

impl HalfFloat for f16 {
    #[inline(always)]
    fn single(self) -> f32 {
        /// The difference of the exponents' offsets.
        const REBIAS: u32 = (127 - 15) << 23;
        let bits = u32::from(self.to_bits());
        let size = (bits & 0x7fff) << 13;
        let normal = size + REBIAS;
        // A subnormal number as the fraction of a normal one, which is then subtracted.
        let one = f32::from_bits(REBIAS + (1 << 23));
        let subnormal = (f32::from_bits(size + one.to_bits()) - one).to_bits();
        let quiet = u32::from(size > 31 << 23) << 22;
        let special = (size + 2 * REBIAS) | quiet;
        let size = match size {
            0..0x0080_0000 => subnormal,
            0x0f80_0000.. => special,
            _ => normal,
        };
        f32::from_bits(size | (bits & 0x8000) << 16)
    }

    #[inline(always)]
    fn round(x: f32) -> f16 {
        /// The smallest normal number.
        const NORMAL: u32 = (127 - 14) << 23;
        /// The smallest power of two that is too large.
        const TOO_LARGE: u32 = (127 + 16) << 23;
        let bits = x.to_bits();
        let size = bits & !SIGN;
        // The sum has the last bit of a subnormal number, so the addition rounds.
        let subnormal = (f32::from_bits(size) + 0.5).to_bits().wrapping_sub(0.5_f32.to_bits());
        let normal = size.wrapping_add(0xfff + (size >> 13 & 1)).wrapping_sub((127 - 15) << 23) >> 13;
        let special = if size > INFINITE { 0x7e00 } else { 0x7c00 };
        let size = if size >= TOO_LARGE { special } else { normal };
        let size = if bits & !SIGN < NORMAL { subnormal } else { size };
        f16::from_bits((size | bits >> 16 & 0x8000) as u16)
    }
}

/// Runs `$body` with `$t` as the Rust type of a 16-bit dtype, and `$other` for every other dtype.
macro_rules! with_half {
    ($dtype:expr, $t:ident => $body:expr, _ => $other:expr) => {
        match $dtype {
            $crate::DType::F16 => {
                type $t = half::f16;
                $body
            }
            $crate::DType::BF16 => {
                type $t = half::bf16;
                $body
            }
            _ => $other,
        }
    };
}
pub(crate) use with_half;

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks conversions at every 16-bit number, halfway to its neighbours, and next to that.
    fn check<H: HalfFloat>(of: fn(u16) -> H, to_bits: fn(H) -> u16, widen: fn(H) -> f64) {
        let is_same = |x: H, y: H| to_bits(x) == to_bits(y) || widen(x).is_nan() && widen(y).is_nan();
        for bits in 0..=u16::MAX {
            let (x, next) = (of(bits), of(bits.wrapping_add(1)));
            assert!(f64::from(x.single()) == widen(x) || x.single().is_nan() && widen(x).is_nan(), "{x:?}");
            assert!(is_same(H::round(x.single()), x) && is_same(H::round_double(widen(x)), x), "{x:?}");
            let [x_size, next_size] = [x, next].map(|x| widen(x).abs());
            if !x_size.is_finite() || next_size.is_nan() || bits == 0x7fff {
                continue;
            }
            // The next number after the largest would be as far away as the one before.
            let before = widen(of(bits - u16::from(bits & 0x7fff > 0)));
            let step = if next_size.is_finite() { widen(next) - widen(x) } else { widen(x) - before };
            let half = widen(x) + step / 2.0;
            let even = if bits & 1 == 0 { x } else { next };
            assert!(is_same(H::round_double(half), even), "{half:e}");
            assert!(is_same(H::round(half as f32), even), "{half:e}");
            let outwards = |x: f64| f64::from_bits(x.to_bits() + 1);
            let inwards = |x: f64| f64::from_bits(x.to_bits() - 1);
            assert!(is_same(H::round_double(outwards(half)), next), "{half:e}");
            assert!(is_same(H::round_double(inwards(half)), x), "{half:e}");
            let single = |half: f32, by: u32| f32::from_bits(half.to_bits().wrapping_add(by));
            assert!(is_same(H::round(single(half as f32, 1)), next), "{half:e}");
            assert!(is_same(H::round(single(half as f32, u32::MAX)), x), "{half:e}");
        }
        for (x, bits) in [
            (f64::MAX, f64::INFINITY),
            (-1e-300, -0.0),
            (1e-300, 0.0),
            (f64::NEG_INFINITY, f64::NEG_INFINITY),
        ] {
            assert_eq!(widen(H::round_double(x)).to_bits(), bits.to_bits());
            assert_eq!(widen(H::round(x as f32)).to_bits(), bits.to_bits());
        }
        assert!(widen(H::round(f32::from_bits(0x7f80_0001))).is_nan());
        assert!(widen(H::round_double(f64::NAN)).is_nan());
    }

    #[test]
    fn numbers_are_rounded_once_to_the_nearest() {
        check(f16::from_bits, f16::to_bits, f16::to_f64);
        check(bf16::from_bits, bf16::to_bits, bf16::to_f64);
    }
}
