//! Times one whole training step of a workload: forward, backward, update.
//!
//! `cargo run --release -p autobwd-benches --bin workloads -- mlp --threads 1` prints one JSON line; `--check` compares
//! the losses with the expected ones, `--profile` prints the time of each operator type. `-- build` times
//! `append_backward`, `-- gemm` matrix products.

mod build;
mod gemm;
mod measure;

use std::process::ExitCode;

use autobwd_benches::{BenchResult, finish, workload::Workload};
use clap::{Parser, Subcommand};

/// Times one training step of a workload and prints one JSON line.
#[derive(Parser)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
struct Args {
    #[command(subcommand)]
    command: Option<WorkloadCommand>,
    /// Workload to train.
    #[arg(required = true)]
    workload: Option<Workload>,
    /// Threads to run on; all cores by default.
    #[arg(long, global = true)]
    threads: Option<usize>,
    /// Seconds to measure for.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Fail unless the losses, the products or the number of gradients are the expected ones.
    #[arg(long, global = true)]
    check: bool,
    /// Print the share of each operator type instead of the JSON line.
    #[arg(long)]
    profile: bool,
    /// Run this number of steps and print nothing: for counting instructions.
    #[arg(long, conflicts_with_all = ["check", "profile"])]
    steps: Option<usize>,
}

#[derive(Subcommand)]
enum WorkloadCommand {
    /// Times building the backward pass, on one thread, and prints one JSON line for each size and shape of the forward
    /// part.
    Build {
        /// Operators of the forward parts.
        #[arg(long, default_values_t = [10_000, 100_000, 1_000_000])]
        ops: Vec<usize>,
        /// Only this shape.
        #[arg(long)]
        shape: Option<build::GraphShape>,
    },
    /// Times products of square matrices and prints one JSON line for each size and number of threads (one and two by
    /// default), with the ratio to the peak rate of fused multiply-adds.
    Gemm {
        /// Seconds to measure each for.
        #[arg(long, default_value_t = 1.0)]
        seconds: f64,
    },
}

fn main() -> ExitCode {
    finish(run(&Args::parse()))
}

fn run(args: &Args) -> BenchResult<ExitCode> {
    match &args.command {
        Some(WorkloadCommand::Build { .. }) if args.threads.is_some_and(|threads| threads != 1) => {
            return Err("`build` runs on one thread: leave `--threads` out".into());
        }
        Some(WorkloadCommand::Build { ops, shape }) => build::run(ops, *shape, args.check)?,
        Some(WorkloadCommand::Gemm { seconds }) => gemm::run(args.threads, *seconds, args.check)?,
        None => return train(args),
    }
    Ok(ExitCode::SUCCESS)
}

fn train(args: &Args) -> BenchResult<ExitCode> {
    let workload = args.workload.ok_or("which workload?")?;
    if let Some(steps) = args.steps {
        measure::steps(workload, args.threads, steps)?;
        return Ok(ExitCode::SUCCESS);
    }
    if args.profile {
        measure::profile(workload, args.threads, args.seconds)?;
        return Ok(ExitCode::SUCCESS);
    }
    let measured = measure::measure(workload, args.threads, args.seconds)?;
    println!("{}", measured.to_json());
    if args.check && !measured.losses_are_expected() {
        eprintln!("error: expected the losses {:?}", workload.expected());
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}
