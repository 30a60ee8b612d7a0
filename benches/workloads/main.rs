//! Times one whole training step of a workload: forward, backward, update.
//!
//! `cargo run --release -p autobwd-benches --bin workloads -- mlp --threads 1` prints one JSON line; `--check` compares
//! the losses with the expected ones.

mod data;
mod measure;
mod models;

use std::process::ExitCode;

use autobwd_benches::{Outcome, finish};
use clap::{Parser, ValueEnum};

/// Times one training step of a workload and prints one JSON line.
#[derive(Parser)]
struct Args {
    /// What to train.
    workload: Workload,
    /// Threads to run on; all cores when left out.
    #[arg(long)]
    threads: Option<usize>,
    /// Seconds to measure for.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Fail unless the losses are the expected ones.
    #[arg(long)]
    check: bool,
}

/// The workloads there are so far.
#[derive(Clone, Copy, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum Workload {
    /// 784-512-512-10, relu, batch 128, softmax cross-entropy.
    Mlp,
    /// 4-8-8-1, tanh, batch 4, mean square error.
    TinyMlp,
    /// 1,000 elementwise operators on 16 elements, sum.
    ChainSmall,
    /// 20 elementwise operators on 1,000,000 elements, sum.
    ChainBig,
}

fn main() -> ExitCode {
    finish(run(&Args::parse()))
}

fn run(args: &Args) -> Outcome<ExitCode> {
    let measured = measure::measure(args.workload, args.threads, args.seconds)?;
    println!("{}", measured.to_json());
    if args.check && !measured.losses_are_expected() {
        eprintln!("error: expected the losses {:?}", args.workload.expected());
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}
