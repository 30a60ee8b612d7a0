//! Serves a saved network from several threads that share its weights.
//!
//! ```text
//! cargo run --release --example serving -- --threads 4 --requests 10000
//! ```
//!
//! Trains a classifier for a moment, saves its program for inference and its weights, loads and freezes them once, and
//! answers requests of 1 to 8 images from all threads. Prints one line of JSON, with times of requests in microseconds.

use std::{
    error::Error,
    num::NonZero,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use autobwd::{Builder, DType, Executor, Program, Scope, Tensor, exec::Predictor};
use autobwd_ops::{
    Math, Model,
    nn::{BatchNorm, Linear},
    optim::{Adam, Optimizer},
};
use clap::Parser;
use serde_json::json;

const PIXELS: usize = 784;
const CLASSES: usize = 10;
const TRAINING_STEPS: usize = 20;
const LARGEST_BATCH: usize = 8;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Serves a saved network from several threads that share its weights.
#[derive(Parser)]
struct Options {
    /// Threads that answer requests
    #[arg(long, value_name = "N", default_value = "4")]
    threads: NonZero<usize>,
    /// Number of requests, of all threads together
    #[arg(long, value_name = "N", default_value = "10000")]
    requests: NonZero<usize>,
}

/// Images of noise, brighter for later ones.
fn images(count: usize) -> autobwd::Result<Tensor> {
    let pixel = |i: usize| (i * 7919 % 256) as f32 / 256.0 + (i / PIXELS) as f32 / 100.0;
    Tensor::from_vec([count, PIXELS], (0..count * PIXELS).map(pixel).collect())
}

/// Trains a network, and saves the part that computes its scores.
fn train(program: &Path, weights: &Path) -> Outcome<()> {
    let net = Builder::new();
    let (x, y) = (net.input("x", DType::F32, &[-1, PIXELS as i64]), net.input("y", DType::I64, &[-1, 1]));
    let hidden = Linear::builder(&net, PIXELS, 128).seed(1).build().forward(&x);
    let hidden = BatchNorm::builder(&net, 128).build().forward(&hidden).relu();
    let scores = Linear::builder(&net, 128, CLASSES).seed(2).build().forward(&hidden);
    Adam::new(0.001).minimize(&scores.mean_cross_entropy(&y))?.complete()?;
    net.set_signature(&[("image", &x)], &[("scores", &scores)])?;

    let (mut executor, mut scope) = (Executor::new(), Scope::new());
    executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
    let x = images(32)?;
    let y = Tensor::from_vec([32, 1], (0..32).map(|i| (i % CLASSES) as i64).collect())?;
    for _ in 0..TRAINING_STEPS {
        executor.run(&net.program()?, &mut scope, &[("x", &x), ("y", &y)], &[])?;
    }
    let model = Model::for_inference(&*net.program()?, &scope, &["scores"])?;
    model.program.save(program)?;
    model.scope.save(weights)?;
    Ok(())
}

/// The times of a thread's requests.
fn answer(
    mut predictor: Predictor,
    input: &str,
    output: &str,
    requests: usize,
) -> autobwd::Result<Vec<Duration>> {
    let batches: Vec<Tensor> = (1..=LARGEST_BATCH).map(images).collect::<autobwd::Result<_>>()?;
    let mut times = Vec::with_capacity(requests);
    for batch in batches.iter().cycle().take(requests) {
        let start = Instant::now();
        let scores = predictor.run(&[(input, batch)])?.slice::<f32>(output)?;
        times.push(start.elapsed());
        assert_eq!(scores.len(), batch.dims()[0] * CLASSES);
    }
    Ok(times)
}

fn main() -> Outcome<()> {
    let Options { threads, requests } = Options::parse();
    let (threads, requests) = (threads.get(), requests.get());
    let folder = tempfile::tempdir()?;
    let (program, weights) = (folder.path().join("model.json"), folder.path().join("model.safetensors"));
    train(&program, &weights)?;

    let (program, mut scope) = (Program::load(&program)?, Scope::new());
    scope.load(&weights)?;
    let signature = program.signature().clone();
    let (input, output) = (signature.input("image")?, signature.output("scores")?);
    let predictor = Model::with_signature(program, scope)?.predictor()?;
    let start = Instant::now();
    let times = thread::scope(|scope| {
        let mut workers = vec![];
        for worker in 0..threads {
            let (own, count) =
                (predictor.clone(), requests / threads + usize::from(worker < requests % threads));
            workers.push(scope.spawn(move || answer(own, input, output, count)));
        }
        let mut times = vec![];
        for worker in workers {
            times.extend(worker.join().map_err(|_| "a thread has panicked")??);
        }
        Outcome::Ok(times)
    });
    let (mut times, seconds) = (times?, start.elapsed().as_secs_f64());
    times.sort_unstable();
    let percentile = |p: usize| times[(times.len() - 1) * p / 100].as_nanos() as f64 / 1000.0;
    let line = json!({
        "requests": times.len(),
        "threads": threads,
        "p50_us": percentile(50),
        "p99_us": percentile(99),
        "requests_per_second": (times.len() as f64 / seconds).round(),
    });
    println!("{line}");
    Ok(())
}
