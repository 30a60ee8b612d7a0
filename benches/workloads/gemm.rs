//! Products of square matrices in 32 and 16 bits, relative to the peak rate of fused multiply-adds at the same time.

use std::{hint::black_box, thread, time::Instant};

use autobwd::{Builder, DType, Executor, Expr, Result, Scope, Tensor};
use autobwd_benches::{BenchResult, ms, quantile, round, workload::numbers};
use autobwd_ops::Math;
use pulp::{Arch, Simd, WithSimd};
use serde_json::json;

const SIZES: [usize; 6] = [64, 128, 256, 512, 1024, 2048];

pub(crate) fn run(threads: Option<usize>, seconds: f64, check: bool) -> BenchResult<()> {
    for threads in threads.map_or(vec![1, 2], |threads| vec![threads]) {
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            for n in SIZES {
                println!("{}", measure(n, dtype, threads, seconds, check)?);
            }
        }
    }
    Ok(())
}

/// Products and multiply-adds in turn, so that other load slows both.
fn measure(
    n: usize,
    dtype: DType,
    threads: usize,
    seconds: f64,
    check: bool,
) -> BenchResult<serde_json::Value> {
    let (net, mut scope) = (Builder::new(), Scope::new());
    let mut factor = |name: &str, seed| -> Result<Expr> {
        let elements: Vec<f64> = numbers(seed, n * n, 1.0).into_iter().map(f64::from).collect();
        scope.set(name, Tensor::from_f64s(dtype, [n, n], &elements)?);
        Ok(net.persistable(name, dtype, &[n, n], Expr::clone))
    };
    let out = factor("x", 1)?.matmul(&factor("y", 2)?).name();
    let mut session = Executor::with_threads(threads).prepare(&net.program()?, &mut scope, &[], &[&out])?;
    let flops = 2.0 * (n as f64).powi(3);
    // About a millisecond between two readings of the clock.
    let runs = (1e8 / flops).ceil();
    let (mut gflops, mut peaks, mut shares, start) = (vec![], vec![], vec![], Instant::now());
    while gflops.len() < 5 || ms(start) < seconds * 1e3 {
        let one = Instant::now();
        for _ in 0..runs as usize {
            session.run(&mut scope)?;
        }
        let (product, peak) = (flops * runs / ms(one) / 1e6, peak(threads));
        gflops.push(product);
        peaks.push(peak);
        shares.push(product / peak);
    }
    if check {
        is_product(&scope, &session.fetch(&out)?, n)?;
    }
    let reps = gflops.len();
    let best = |of: &mut Vec<f64>| quantile(of, 1.0 - 0.5 / reps as f64);
    Ok(json!({
        "lib": "autobwd",
        "workload": "gemm",
        "dtype": dtype.name(),
        "n": n,
        "threads": threads,
        "median_gflops": round(quantile(&mut gflops, 0.5), 1),
        "max_gflops": round(best(&mut gflops), 1),
        "peak_gflops": round(best(&mut peaks), 1),
        "share_of_peak": round(quantile(&mut shares, 0.5), 3),
        "max_share_of_peak": round(best(&mut gflops) / best(&mut peaks), 3),
        "reps": reps,
    }))
}

/// Checks `out = x · y` against f64 for some of the elements.
fn is_product(scope: &Scope, out: &Tensor, n: usize) -> BenchResult<()> {
    let [x, y, out] = [scope.get("x")?, scope.get("y")?, out].map(Tensor::to_f64s);
    let rounding = if scope.get("x")?.dtype() == DType::F32 { 1e-5 } else { 1e-2 };
    // Every row, every column.
    for (i, j) in (0..n).map(|i| (i, (i * 7 + 3) % n)) {
        let terms = (0..n).map(|k| x[i * n + k] * y[k * n + j]);
        let (sum, size) = terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()));
        let found = out[i * n + j];
        if (found - sum).abs() > rounding * size {
            return Err(format!("element {i}, {j} of the product of {n} by {n} is {found}, not {sum}").into());
        }
    }
    Ok(())
}

/// The peak rate of `threads` threads on fused multiply-adds, in GFLOP/s.
fn peak(threads: usize) -> f64 {
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
const ROUNDS: usize = 1_000_000;

/// Independent sums of products; returns the number of operations.
struct MultiplyAdds;

impl WithSimd for MultiplyAdds {
    type Output = usize;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> usize {
        let (factor, summand) = (simd.splat_f32s(black_box(0.999)), simd.splat_f32s(black_box(1e-3)));
        let mut sums = [summand; SUMS];
        for _ in 0..ROUNDS {
            for sum in &mut sums {
                *sum = simd.mul_add_f32s(*sum, factor, summand);
            }
        }
        black_box(sums.map(|sum| simd.reduce_sum_f32s(sum)));
        2 * ROUNDS * SUMS * S::F32_LANES
    }
}
