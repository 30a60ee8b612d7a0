//! The peak rate of the machine at this moment.

use std::{hint::black_box, thread, time::Instant};

use pulp::{Arch, Simd, WithSimd};

use crate::ms;

/// The peak rate of `threads` threads on fused multiply-adds, in GFLOP/s.
pub fn peak_gflops(threads: usize) -> f64 {
    let (start, arch) = (Instant::now(), Arch::new());
    let flops: usize = thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(|| arch.dispatch(MultiplyAdds))).collect();
        let own = arch.dispatch(MultiplyAdds);
        own + others.into_iter().filter_map(|other| other.join().ok()).sum::<usize>()
    });
    flops as f64 / ms(start) / 1e6
}

/// Number of independent sums: fused multiply-adds in flight, limited by the registers.
const SUMS: usize = 12;
/// Enough to make the start of a thread negligible.
const REPEATS: usize = 1_000_000;

/// Independent sums of products; returns the number of operations.
struct MultiplyAdds;

impl WithSimd for MultiplyAdds {
    type Output = usize;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> usize {
        let (factor, summand) = (simd.splat_f32s(black_box(0.999)), simd.splat_f32s(black_box(1e-3)));
        let mut sums = [summand; SUMS];
        for _ in 0..REPEATS {
            for sum in &mut sums {
                *sum = simd.mul_add_f32s(*sum, factor, summand);
            }
        }
        black_box(sums.map(|sum| simd.reduce_sum_f32s(sum)));
        2 * REPEATS * SUMS * S::F32_LANES
    }
}
