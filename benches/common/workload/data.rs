//! Data and initial values from a portable integer hash, so that every library starts from the same numbers.

fn hash(seed: u32, i: u32) -> u32 {
    let mut x = i.wrapping_mul(2_654_435_761).wrapping_add(seed.wrapping_mul(40_503)).wrapping_add(12_345);
    x ^= x >> 16;
    x = x.wrapping_mul(0x45d_9f3b);
    x ^ (x >> 16)
}

/// `n` numbers within ±`scale`.
pub fn numbers(seed: u32, n: usize, scale: f64) -> Vec<f32> {
    let number = |i| ((f64::from(hash(seed, i)) / 4_294_967_296.0 * 2.0 - 1.0) * scale) as f32;
    (0..n as u32).map(number).collect()
}

/// `n` integers below `bound`.
pub fn integers(seed: u32, n: usize, bound: u32) -> Vec<i64> {
    (0..n as u32).map(|i| i64::from((hash(seed, i) >> 8) % bound)).collect()
}
