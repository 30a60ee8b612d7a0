//! Time of an operator on the eager tape, forward and backward.
//!
//! `cargo run --release -p autobwd-benches --bin tape` prints a JSON line for each operator: a row of them on tensors
//! of one element is recorded and differentiated, on one thread. The last line has the medians over the operators.

use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

use autobwd::{Builder, Expr, Tensor};
use autobwd_benches::{BenchResult, finish, rows};
use autobwd_ops::Math;
use clap::Parser;

/// Times recorded operators, one JSON line each.
#[derive(Parser)]
struct Args {
    /// Number of operators in a row.
    #[arg(long, default_value_t = 1000)]
    length: usize,
    /// Number of runs of every row.
    #[arg(long, default_value_t = 201)]
    rounds: usize,
    /// Maximum median in nanoseconds; fails above.
    #[arg(long)]
    bound: Option<f64>,
}

/// The next value, from the last one and a leaf.
type TapeStep = fn(&Expr, &Expr) -> Expr;

const OPERATORS: [(&str, TapeStep); 10] = [
    ("elementwise_add", |y, w| y + w),
    ("elementwise_sub", |y, w| y - w),
    ("elementwise_mul", |y, w| y * w),
    ("elementwise_div", |y, w| y / w),
    ("scale", |y, _| y * 1.01),
    ("tanh", |y, _| y.tanh()),
    ("sigmoid", |y, _| y.sigmoid()),
    ("exp", |y, _| y.exp()),
    ("sin", |y, _| y.sin()),
    ("relu", |y, _| y.relu()),
];

fn main() -> ExitCode {
    finish(run(&Args::parse()))
}

fn run(args: &Args) -> BenchResult<ExitCode> {
    let tape = &autobwd::tape::eager_with_threads(1);
    let operators = OPERATORS.map(|(name, step)| (name, move |length| row(tape, step, length)));
    let median = rows("autobwd", args.length, args.rounds, operators)?;
    Ok(if args.bound.is_some_and(|bound| median > bound) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Durations of recording a row of operators, and of its backward pass and destruction.
fn row(tape: &Builder, step: TapeStep, length: usize) -> autobwd::Result<[Duration; 2]> {
    let (x, w) = (tape.leaf("x", Tensor::scalar(0.5_f32)?), tape.leaf("w", Tensor::scalar(1.01_f32)?));
    let start = Instant::now();
    let mut y = step(&x, &w);
    for _ in 1..length {
        y = step(&y, &w);
    }
    let recorded = Instant::now();
    y.backward()?;
    drop(y);
    Ok([recorded - start, recorded.elapsed()])
}
