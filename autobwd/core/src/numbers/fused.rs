//! Fused multiply-add in software, with the bits of the instruction, for machines without one.

/// `x · y + z`, rounded once to nearest, ties to even.
///
/// The product is exact in double precision. The sum is rounded to odd: its last bit records that something was lost, and
/// double precision has enough bits that the second rounding is right (Boldo and Melquiond, "Emulation of a FMA and
/// Correctly Rounded Sums", 2008).
pub(crate) fn mul_add_f32(x: f32, y: f32, z: f32) -> f32 {
    let (product, z) = (f64::from(x) * f64::from(y), f64::from(z));
    let sum = product + z;
    if !sum.is_finite() {
        return sum as f32;
    }
    let of_z = sum - product;
    let lost = (product - (sum - of_z)) + (z - of_z);
    let bits = sum.to_bits();
    let odd = match lost != 0.0 && bits & 1 == 0 {
        true if (lost > 0.0) == (sum > 0.0) => bits + 1,
        true => bits - 1,
        false => bits,
    };
    f64::from_bits(odd) as f32
}

/// `x · y + z`, rounded once to nearest, ties to even.
pub(crate) fn mul_add_f64(x: f64, y: f64, z: f64) -> f64 {
    libm::fma(x, y, z)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Random bits: numbers of all magnitudes.
    fn bits(state: &mut u64) -> u64 {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        state.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    #[test]
    fn software_has_the_bits_of_the_system() {
        let mut state = 1;
        for round in 0..200_000 {
            let [x, y, mut z] = [(); 3].map(|()| f32::from_bits((bits(&mut state) >> 32) as u32));
            if round % 2 == 0 {
                z = -(x * y) * (1.0 + f32::EPSILON * (round % 7) as f32);
            }
            let (found, wanted) = (mul_add_f32(x, y, z), x.mul_add(y, z));
            assert!(
                found.to_bits() == wanted.to_bits() || found.is_nan() && wanted.is_nan(),
                "{x:e} {y:e} {z:e}"
            );
            let [x, y, mut z] = [(); 3].map(|()| f64::from_bits(bits(&mut state)));
            if round % 2 == 0 {
                z = -(x * y) * (1.0 + f64::EPSILON * f64::from(round % 7));
            }
            let (found, wanted) = (mul_add_f64(x, y, z), x.mul_add(y, z));
            assert!(
                found.to_bits() == wanted.to_bits() || found.is_nan() && wanted.is_nan(),
                "{x:e} {y:e} {z:e}"
            );
        }
    }

    #[test]
    fn ties_of_subnormal_results_are_decided_by_what_double_precision_loses() {
        // 2^-130 + 2^-150 · (1 + 2^-46), just above the middle of two subnormal numbers.
        let (x, y) = (2_f32.powi(-75) * (1.0 + 2_f32.powi(-23)), 2_f32.powi(-75) * (1.0 + 2_f32.powi(-23)));
        let z = 2_f32.powi(-130);
        assert_eq!(mul_add_f32(x, y, z), z + 2_f32.powi(-149));
        assert_eq!(mul_add_f32(x, 2_f32.powi(-75), z), z + 2_f32.powi(-149));
        assert_eq!(mul_add_f32(2_f32.powi(-75), 2_f32.powi(-75), z), z);
    }
}
