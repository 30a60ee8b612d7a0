//! Random numbers, by the generator of the library in integer arithmetic: equal seeds mean equal numbers.
//!
//! The generator is PCG with a multiplicative congruential state of 128 bits (M. O'Neill, 2014; `Pcg64Mcg` of `rand_pcg`).
//! The state before number `i` is the first state times a power of the multiplier, so all numbers are computed together.

use autobwd_ops::random::{NoiseDistribution, NoiseLike};

use super::{cumulative::cumulative_sum, prelude::*};
use crate::lower::ScatterDims;

family!(NoiseLike);

const MULTIPLIER: u128 = 0x2360_ED05_1FC6_5DA4_4385_DF64_9FCC_F645;

/// Unsigned integers of 128 bits.
struct Wide {
    high: Hlo,
    low: Hlo,
}

fn u64s(like: &Hlo, x: u64) -> Hlo {
    like.full_u64(like.dims(), x)
}

impl Wide {
    fn times(&self, factor: u128) -> Wide {
        let (high, low) = (u64s(&self.low, (factor >> 64) as u64), u64s(&self.low, factor as u64));
        let crossed = &self.high * &low + &self.low * high;
        Wide { high: crossed + high_product(&self.low, &low), low: &self.low * low }
    }

    fn followed_by(self, other: Wide) -> Wide {
        let joined = |x: Hlo, y: Hlo| Hlo::concat(&[x.clone(), y], 0).unwrap_or(x);
        Wide { high: joined(self.high, other.high), low: joined(self.low, other.low) }
    }

    /// The number that follows from a state: XSL-RR.
    fn output(&self) -> Hlo {
        rotated_right(&self.high.xor(&self.low), &self.high.shift_right(&u64s(&self.high, 58)), 64)
    }
}

/// The upper 64 bits of products of integers of 64 bits.
fn high_product(x: &Hlo, y: &Hlo) -> Hlo {
    let (bits, mask) = (u64s(x, 32), u64s(x, u64::from(u32::MAX)));
    let halves = |x: &Hlo| (x.shift_right(&bits), x.and(&mask));
    let ((x1, x0), (y1, y0)) = (halves(x), halves(y));
    let middle = &x1 * &y0 + (&x0 * &y0).shift_right(&bits);
    let (carry, rest) = halves(&middle);
    x1 * &y1 + carry + (rest + x0 * y1).shift_right(&bits)
}

/// The bits of integers of `width` bits, held in 64, rotated.
fn rotated_right(x: &Hlo, by: &Hlo, width: u64) -> Hlo {
    let (all, mask) = (u64s(x, width), u64s(x, width - 1));
    let rotated = x.shift_right(by).or(&x.shift_left(&(all - by).and(&mask)));
    if width == 64 { rotated } else { rotated.and(&u64s(x, (1 << width) - 1)) }
}

/// The state for a seed, one integer of 64 bits: its bits are the numbers of a smaller generator.
fn seeded(seed: &Hlo) -> Wide {
    let mut state = seed.clone();
    let mut next = || {
        state = &state * u64s(seed, 6_364_136_223_846_793_005) + u64s(seed, 11_634_580_027_462_260_723);
        let xored = state.shift_right(&u64s(seed, 18)).xor(&state).shift_right(&u64s(seed, 27));
        let low = xored.and(&u64s(seed, u64::from(u32::MAX)));
        rotated_right(&low, &state.shift_right(&u64s(seed, 59)), 32)
    };
    let mut word = || next().or(&next().shift_left(&u64s(seed, 32)));
    let low = word().or(&u64s(seed, 1));
    Wide { low, high: word() }
}

/// The first `n` numbers of the generator: in [0, 1), of double precision.
fn units(seed: &Hlo, n: usize) -> Hlo {
    if n == 0 {
        return seed.full(HloDType::F64, &[0], 0.0);
    }
    let (mut states, mut power, mut count) = (seeded(&seed.reshape(&[1])).times(MULTIPLIER), MULTIPLIER, 1);
    while count < n {
        let next = states.times(power);
        states = states.followed_by(next);
        (power, count) = (power.wrapping_mul(power), 2 * count);
    }
    let numbers = states.output().slice_axis(0, 0, n);
    numbers.shift_right(&u64s(&numbers, 11)).convert(HloDType::F64) / (1_u64 << 53) as f64
}

/// The first `n` standard normal numbers, by Leva's ratio of uniforms (ACM TOMS 18, 1992).
///
/// Each attempt takes two uniform numbers, and 73 % of them succeed. There are so many attempts that too few successes are
/// out of the question: the margin is 20 standard deviations.
fn normals(seed: &Hlo, n: usize) -> Hlo {
    let attempts = (n as f64 / 0.73 + 20.0 * (n as f64).sqrt()) as usize + 100;
    let pairs = units(seed, 2 * attempts).reshape(&[attempts, 2]);
    let column = |i: usize| pairs.slice_axis(1, i, i + 1).reshape(&[attempts]);
    let (u, v) = (-column(0) + 1.0, (column(1) - 0.5) * 1.7156);
    let (x, y) = (&u - 0.449871, v.abs() + 0.386595);
    let q = x.square() + &y * (&y * 0.19600 - &x * 0.25472);
    let bound = u.square() * &u.log() * -4.0;
    let near = q.less_equal(&q.full_like(0.27846)).and(&v.square().less_equal(&bound));
    let accepted = q.less(&q.full_like(0.27597)).or(&near);
    // Successes in order: each at its number, failures behind the end, where they are left out.
    let number = cumulative_sum(&accepted.convert(HloDType::I32), 0) - 1.0;
    let place = accepted.select(&number, &number.full_like(attempts as f64)).reshape(&[attempts, 1]);
    let by = ScatterDims { window: vec![], inserted: vec![0], index_map: vec![0], index_vector: 1 };
    pairs.full(HloDType::F64, &[n], 0.0).scatter(&place, &(v / u), &by, None)
}

impl Lower for NoiseLike<Hlo> {
    fn lower(&mut self) {
        let seed = self.seed.reshape(&[]).convert(HloDType::I64).bitcast(HloDType::U64);
        let n = self.out.numel();
        let numbers = match self.distribution {
            NoiseDistribution::Normal => normals(&seed, n),
            NoiseDistribution::Uniform => units(&seed, n),
        };
        self.out = numbers.convert(self.out.dtype());
    }
}
