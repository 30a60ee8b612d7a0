//! Time to plan and bind a training step for a new batch size.
//!
//! `cargo run --release -p autobwd-benches --bin planning` prints a JSON line for each depth of network: microseconds
//! per operator, of the plan alone and of a prepared session; and the time of a step by `Executor::run`, without
//! running, if the batch size changes every time.

use std::{process::ExitCode, time::Instant};

use autobwd::{Builder, DType, Executor, Expr, Meta, Result, Scope, Tensor};
use autobwd_benches::{BenchResult, finish, median, ms, resident_bytes, round};
use autobwd_ops::{
    Math,
    nn::Linear,
    optim::{Optimizer, Sgd},
};
use clap::Parser;
use serde_json::json;

/// Times planning for new shapes, one JSON line for each depth.
#[derive(Parser)]
struct Args {
    /// Layers of the networks, each a product, a sum and a tanh.
    #[arg(long, default_values_t = [3, 30, 300])]
    layers: Vec<usize>,
    /// Number of batch sizes.
    #[arg(long, default_value_t = 100)]
    sizes: usize,
    /// Steps, each with the next size, starting over after the last; as many as there are sizes unless given.
    #[arg(long)]
    steps: Option<usize>,
}

fn main() -> ExitCode {
    finish(run(&Args::parse()))
}

fn run(args: &Args) -> BenchResult<ExitCode> {
    for layers in &args.layers {
        measure(*layers, args.sizes, args.steps.unwrap_or(args.sizes))?;
    }
    Ok(ExitCode::SUCCESS)
}

const WIDTH: usize = 8;

fn network(layers: usize) -> Result<(Builder, Expr)> {
    let net = Builder::new();
    let mut h = net.input("x", DType::F32, &[-1, WIDTH as i64]);
    for l in 0..layers {
        h = Linear::builder(&net, WIDTH, WIDTH).seed(l as i32).build().forward(&h).tanh();
    }
    let loss = h.mean();
    Sgd { rate: 0.01 }.minimize(&loss)?.complete()?;
    Ok((net, loss))
}

fn measure(layers: usize, sizes: usize, steps: usize) -> BenchResult<()> {
    let (net, loss) = network(layers)?;
    let (program, loss) = (net.program()?, loss.name());
    let mut scope = Scope::new();
    let mut executor = Executor::with_threads(1);
    executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
    let (mut plan, mut session, mut step, mut again) = (vec![], vec![], vec![], vec![]);
    let mut resident = vec![];
    for number in 0..steps {
        let size = number % sizes.max(1) + 1;
        let feeds = [("x", Meta::new(DType::F32, [size, WIDTH]))];
        let start = Instant::now();
        executor.plan(&program, &scope, &feeds, &[&loss])?;
        plan.push(ms(start));
        let start = Instant::now();
        executor.prepare(&program, &mut scope, &feeds, &[&loss])?;
        session.push(ms(start));
        let x = Tensor::zeros(DType::F32, &[size, WIDTH])?;
        for times in [&mut step, &mut again] {
            let start = Instant::now();
            executor.run(&program, &mut scope, &[("x", &x)], &[&loss])?;
            times.push(ms(start));
        }
        resident.push(resident_bytes());
    }
    let ops = program.root().ops.len();
    let each = |times: Vec<f64>| round(median(times) * 1e3 / ops as f64, 3);
    let (step_ms, again_ms) = (median(step), median(again));
    let grown =
        resident.last().zip(resident.get(steps / 2)).map_or(0, |(end, half)| end.saturating_sub(*half));
    let line = json!({
        "lib": "autobwd",
        "workload": "planning",
        "ops": ops,
        "plan_us_per_op": each(plan),
        "session_us_per_op": each(session),
        "new_size_ms": round(step_ms, 4),
        "known_size_ms": round(again_ms, 4),
        "resident_bytes_grown_over_the_second_half": grown,
    });
    println!("{line}");
    Ok(())
}
