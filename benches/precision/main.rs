//! Training steps of models of published sizes, in single and in mixed precision.
//!
//! `cargo run --release -p autobwd-benches --bin precision -- gpt2 --dtype bfloat16` prints one JSON line: the median time
//! of a step, the losses, and the peak of resident memory. `torch_peer.py` runs the same models in PyTorch.

mod models;

use std::{process::ExitCode, time::Instant};

use autobwd::{DType, Executor};
use autobwd_benches::{BenchResult, finish, median, ms, peak_resident_bytes, print_profile, round};
use clap::{Parser, ValueEnum};
use models::PublishedModel;
use serde_json::json;

/// Times training steps of a model in a precision.
#[derive(Parser)]
struct Args {
    /// The model.
    model: PublishedModel,
    /// The dtype of products.
    #[arg(long, default_value = "float32", value_parser = dtype)]
    dtype: DType,
    /// Threads to run on.
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Number of steps that are timed, after one that is not.
    #[arg(long, default_value_t = 5)]
    steps: usize,
    /// Prints the times of operators for that many seconds first.
    #[arg(long)]
    profile: Option<f64>,
}

fn dtype(name: &str) -> Result<DType, String> {
    let known = DType::from_name(name).filter(|dtype| *dtype == DType::F32 || dtype.is_half());
    known.ok_or_else(|| "float32, float16 and bfloat16 are possible".into())
}

fn main() -> ExitCode {
    finish(run(&Args::parse()))
}

fn run(args: &Args) -> BenchResult<ExitCode> {
    let mut executor = Executor::with_threads(args.threads);
    let models::TrainingStep { net, mut scope, loss } = args.model.step(args.dtype)?;
    executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
    let mut session = executor.prepare(&net.program()?, &mut scope, &[], &[&loss])?;
    if let Some(seconds) = args.profile {
        let title = format!("{} on {} threads", args.dtype.name(), args.threads);
        print_profile(&title, seconds, &mut session, &mut scope, |_| Ok(()))?;
    }
    let (mut times, mut losses) = (vec![], vec![]);
    for _ in 0..=args.steps {
        let start = Instant::now();
        session.run(&mut scope)?;
        times.push(ms(start));
        losses.push(round(session.fetch(&loss)?.item()?, 4));
    }
    let line = json!({
        "lib": "autobwd",
        "model": args.model.to_possible_value().map(|model| model.get_name().to_string()),
        "dtype": args.dtype.name(),
        "threads": args.threads,
        "median_ms": round(median(times.split_off(1)), 1),
        "losses": losses,
        "peak_rss_mb": round(peak_resident_bytes() as f64 / 1024.0 / 1024.0, 0),
    });
    println!("{line}");
    Ok(ExitCode::SUCCESS)
}
