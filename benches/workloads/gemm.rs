//! Products of matrices in 32 and 16 bits, and with quantised weights, relative to the peak rate of fused multiply-adds at the same time.

use std::time::Instant;

use autobwd::{Builder, DType, Executor, Expr, Result, Scope, Tensor};
use autobwd_benches::{BenchResult, ms, peak_gflops, quantile, round, workload::numbers};
use autobwd_ops::{
    Init, Math, Model,
    quantization::{Quantization, QuantizedKind, quantize},
};
use serde_json::json;

/// Rows of the left factor, rows and columns of the right one.
const SIZES: [(usize, usize); 8] = [
    (64, 64),
    (128, 128),
    (256, 256),
    (512, 512),
    (1024, 1024),
    (2048, 2048),
    // As a model reads its weights for one token.
    (1, 1024),
    (1, 8192),
];

/// How the right factor is stored; the left one has the same dtype, or float32.
#[derive(Clone, Copy)]
enum Storage {
    Floats(DType),
    Quantized(Quantization),
}

impl Storage {
    fn dtype(self) -> DType {
        match self {
            Storage::Floats(dtype) => dtype,
            Storage::Quantized(_) => DType::F32,
        }
    }

    fn name(self) -> String {
        match self {
            Storage::Floats(dtype) => dtype.name().into(),
            Storage::Quantized(quantization) => quantization.to_string(),
        }
    }

    /// The largest error in parts of the sum of magnitudes.
    fn rounding(self) -> f64 {
        match self {
            Storage::Floats(DType::F32) => 1e-5,
            Storage::Floats(_) => 1e-2,
            Storage::Quantized(Quantization { kind: QuantizedKind::Int8, .. }) => 1e-2,
            Storage::Quantized(_) => 1e-1,
        }
    }
}

pub(crate) fn run(threads: Option<usize>, seconds: f64, check: bool) -> BenchResult<()> {
    let floats = [DType::F32, DType::BF16, DType::F16].map(Storage::Floats);
    let quantized = [Quantization::INT8, Quantization::INT4].map(Storage::Quantized);
    for threads in threads.map_or(vec![1, 2], |threads| vec![threads]) {
        for storage in floats.into_iter().chain(quantized) {
            for (m, n) in SIZES {
                println!("{}", measure((m, n), storage, threads, seconds, check)?);
            }
        }
    }
    Ok(())
}

/// Products and multiply-adds in turn, so that other load slows both.
fn measure(
    (m, n): (usize, usize),
    storage: Storage,
    threads: usize,
    seconds: f64,
    check: bool,
) -> BenchResult<serde_json::Value> {
    let (net, mut scope, dtype) = (Builder::new(), Scope::new(), storage.dtype());
    let mut factor = |name: &str, seed, rows: usize| -> Result<(Expr, Vec<f64>)> {
        let elements: Vec<f64> = numbers(seed, rows * n, 1.0).into_iter().map(f64::from).collect();
        let tensor = Tensor::from_f64s(dtype, [rows, n], &elements)?;
        let rounded = tensor.to_f64s();
        scope.set(name, tensor);
        Ok((net.parameter(name, dtype, &[rows, n], |w| Init::Constant(0.0).emit(w, 0)), rounded))
    };
    let ((x, x_numbers), (y, y_numbers)) = (factor("x", 1, m)?, factor("y", 2, n)?);
    let out = x.matmul(&y).name();
    let (feeds, fetches) = (vec![], vec![out.clone()]);
    let mut model = Model { program: net.program()?.clone(), feeds, fetches, scope };
    if let Storage::Quantized(quantization) = storage {
        quantize(&mut model, "y", quantization)?;
    }
    let bytes: usize =
        model.scope.iter().filter(|(name, _)| *name != "x").map(|(_, y)| y.bytes().len()).sum();
    let Model { program, mut scope, .. } = model;
    let mut session = Executor::with_threads(threads).prepare(&program, &mut scope, &[], &[&out])?;
    let flops = 2.0 * m as f64 * (n as f64).powi(2);
    // About a millisecond between two readings of the clock.
    let runs = (1e8 / flops).ceil();
    let (mut gflops, mut peaks, mut shares, start) = (vec![], vec![], vec![], Instant::now());
    while gflops.len() < 5 || ms(start) < seconds * 1e3 {
        let one = Instant::now();
        for _ in 0..runs as usize {
            session.run(&mut scope)?;
        }
        let (product, peak) = (flops * runs / ms(one) / 1e6, peak_gflops(threads));
        gflops.push(product);
        peaks.push(peak);
        shares.push(product / peak);
    }
    if check {
        is_product([&x_numbers, &y_numbers], &session.fetch(&out)?.to_f64s(), n, storage.rounding())?;
    }
    let reps = gflops.len();
    let best = |of: &mut Vec<f64>| quantile(of, 1.0 - 0.5 / reps as f64);
    let median = quantile(&mut gflops, 0.5);
    Ok(json!({
        "lib": "autobwd",
        "workload": "gemm",
        "dtype": storage.name(),
        "rows": m,
        "n": n,
        "threads": threads,
        "median_gflops": round(median, 1),
        "gigabytes_per_second": round(bytes as f64 * median / flops, 1),
        "max_gflops": round(best(&mut gflops), 1),
        "peak_gflops": round(best(&mut peaks), 1),
        "share_of_peak": round(quantile(&mut shares, 0.5), 3),
        "max_share_of_peak": round(best(&mut gflops) / best(&mut peaks), 3),
        "reps": reps,
    }))
}

/// Checks `out = x · y` against f64 for some of the elements.
fn is_product([x, y]: [&[f64]; 2], out: &[f64], n: usize, rounding: f64) -> BenchResult<()> {
    // Every row, every column.
    for i in 0..n.max(out.len() / n) {
        let (row, j) = (i % (out.len() / n), (i * 7 + 3) % n);
        let terms = (0..n).map(|k| x[row * n + k] * y[k * n + j]);
        let (sum, size) = terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()));
        let found = out[row * n + j];
        if (found - sum).abs() > rounding * size {
            return Err(format!("element {row}, {j} of a product of {n} terms is {found}, not {sum}").into());
        }
    }
    Ok(())
}
