//! What an operator costs on the eager tape, forward and backward, beside computing its one element.
//!
//! `cargo run --release -p autobwd-benches --bin tape` prints a JSON line for each operator: a row of them on tensors of one
//! element is recorded and differentiated, on one thread. The last line has the medians over the operators.

use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

use autobwd::{Builder, Expr, Tensor};
use autobwd_benches::{Outcome, finish, rows};
use autobwd_ops::Math;
use clap::Parser;

/// Times recorded operators, one JSON line each.
#[derive(Parser)]
struct Args {
    /// How many operators are in a row.
    #[arg(long, default_value_t = 1000)]
    length: usize,
    /// How often every row is run.
    #[arg(long, default_value_t = 201)]
    rounds: usize,
    /// Fails if the median is more nanoseconds.
    #[arg(long)]
    bound: Option<f64>,
}

/// The next value, from the last one and a leaf.
type Step = fn(&Expr, &Expr) -> Expr;

const OPERATORS: [(&str, Step); 10] = [
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

fn run(args: &Args) -> Outcome<ExitCode> {
    let tape = &autobwd::tape::eager_with_threads(1);
    let operators = OPERATORS.map(|(name, step)| (name, move |length| row(tape, step, length)));
    let median = rows("autobwd", args.length, args.rounds, operators)?;
    Ok(if args.bound.is_some_and(|bound| median > bound) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// What recording a row of operators takes, and what going back and letting go of it.
fn row(tape: &Builder, step: Step, length: usize) -> autobwd::Result<[Duration; 2]> {
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
