//! What an operator costs on the eager tape, forward and backward, beside computing its one element.
//!
//! `cargo run --release -p autobwd-benches --bin tape` prints a JSON line for each operator: a row of them on tensors of one
//! element is recorded and differentiated, on one thread. The last line has the median over the operators.

use std::{process::ExitCode, time::Instant};

use autobwd::{Builder, Expr, Tensor};
use autobwd_benches::{Outcome, finish, round};
use autobwd_ops::Math;
use clap::Parser;
use serde_json::json;

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
type Step = fn(&Expr, &Expr) -> autobwd::Result<Expr>;

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
    let tape = Builder::eager_with_threads(1);
    let mut totals = vec![];
    for (name, step) in OPERATORS {
        let (mut forward, mut backward) = (vec![], vec![]);
        for _ in 0..args.rounds.max(1) {
            let (x, w) =
                (tape.leaf("x", Tensor::scalar(0.5_f32)?), tape.leaf("w", Tensor::scalar(1.01_f32)?));
            let start = Instant::now();
            let mut y = step(&x, &w)?;
            for _ in 1..args.length.max(1) {
                y = step(&y, &w)?;
            }
            let recorded = Instant::now();
            y.backward()?;
            drop(y);
            backward.push(recorded.elapsed().as_secs_f64());
            forward.push((recorded - start).as_secs_f64());
        }
        let ns = |seconds: &mut [f64]| median(seconds) * 1e9 / args.length as f64;
        let (forward, backward) = (ns(&mut forward), ns(&mut backward));
        totals.push(forward + backward);
        let line = json!({
            "operator": name,
            "forward_ns": round(forward, 1),
            "backward_ns": round(backward, 1),
            "ns": round(forward + backward, 1),
        });
        println!("{line}");
    }
    let median = median(&mut totals);
    println!("{}", json!({ "median_ns": round(median, 1), "length": args.length }));
    Ok(if args.bound.is_some_and(|bound| median > bound) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn median(numbers: &mut [f64]) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}
