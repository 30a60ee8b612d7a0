//! Attention at growing lengths: the time of its forward and backward pass next to PyTorch, and its memory.
//!
//! `cargo run --release -p autobwd-benches --bin attention` prints a JSON line for each length: one sequence, causal,
//! 8 heads of 64 columns. Each measurement has a process of its own, ours and PyTorch's in turn, and medians count.
//! Memory is the growth of resident memory from planning to the end of a step, with the three gradients, next to what
//! was planned.

use std::{
    env,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    time::Instant,
};

use autobwd::{Builder, DType, Executor, Expr, Scope, Tensor, gradients};
use autobwd_benches::{
    BenchResult, finish, forget_peak, json_line, median, ms, peak_resident_bytes, python_with,
    resident_bytes, round, workload::numbers,
};
use autobwd_ops::Math;
use clap::Parser;
use serde_json::{Value, json};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
const PACKAGES: &[&[&str]] = &[&["torch", "numpy"]];
const HEADS: usize = 8;
const DEPTH: usize = 64;

/// Times attention, here and in PyTorch.
#[derive(Parser)]
struct Args {
    /// Numbers of queries and keys.
    #[arg(default_values_t = [1024, 2048, 4096, 8192, 16384])]
    lengths: Vec<usize>,
    /// Threads to run on.
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Number of processes of each.
    #[arg(long, default_value_t = 3)]
    repeat: usize,
    /// Number of steps that are timed in a process, after one that is not.
    #[arg(long, default_value_t = 3)]
    steps: usize,
    /// An interpreter that has PyTorch.
    #[arg(long)]
    python: Option<PathBuf>,
    /// Time the only length here alone, once.
    #[arg(long, conflicts_with_all = ["repeat", "python"])]
    alone: bool,
}

fn main() -> ExitCode {
    finish(run(&Args::parse()).map(|()| ExitCode::SUCCESS))
}

fn run(args: &Args) -> BenchResult<()> {
    if args.alone {
        let &[length] = &args.lengths[..] else { return Err("`--alone` needs one length".into()) };
        println!("{}", alone(length, args.threads, args.steps)?);
        return Ok(());
    }
    let python = match &args.python {
        Some(python) => python.clone(),
        None => python_with(&Path::new(ROOT).join("target/torch"), PACKAGES)?,
    };
    for length in &args.lengths {
        let own = env::current_exe()?;
        let numbers = [length.to_string(), args.threads.to_string(), args.steps.to_string()];
        let mut runs = vec![];
        for _ in 0..args.repeat.max(1) {
            let [length, threads, steps] = &numbers;
            let mut here = Command::new(&own);
            here.args(["--alone", "--threads", threads, "--steps", steps, length]);
            let mut there = Command::new(&python);
            there.arg(Path::new(ROOT).join("benches/attention/torch_peer.py")).args(&numbers);
            runs.push([json_line(&mut here)?, json_line(&mut there)?]);
        }
        let of = |side: usize, key: &str| {
            median(runs.iter().map(|run| run[side][key].as_f64().unwrap_or(f64::NAN)).collect())
        };
        let ratio = |key: &str| round(of(0, key) / of(1, key), 3);
        let [forward, both] = ["forward_ms", "both_ms"];
        println!(
            "{}",
            json!({
                "length": length,
                "threads": args.threads,
                "forward_ms": round(of(0, forward), 2),
                "torch_forward_ms": round(of(1, forward), 2),
                "forward_ratio": ratio(forward),
                "both_ms": round(of(0, both), 2),
                "torch_both_ms": round(of(1, both), 2),
                "both_ratio": ratio(both),
                "planned_bytes": of(0, "planned_bytes"),
                "measured_bytes": of(0, "measured_bytes"),
                "torch_measured_bytes": of(1, "measured_bytes"),
            })
        );
    }
    Ok(())
}

/// Times the forward pass alone, and with the gradients of queries, keys and values.
fn alone(length: usize, threads: usize, steps: usize) -> BenchResult<Value> {
    let executor = Executor::with_threads(threads);
    let (net, mut scope) = (Builder::new(), Scope::new());
    let dims = [1, length, HEADS, DEPTH];
    let inputs = ["q", "k", "v"];
    for (name, seed) in inputs.into_iter().zip(1..) {
        // Tensors that are allocated here are not copied when a session takes them.
        let mut elements = Tensor::zeros(DType::F32, &dims)?;
        elements.slice_mut::<f32>()?.copy_from_slice(&numbers(seed, length * HEADS * DEPTH, 1.0));
        scope.set(name, elements);
    }
    let [q, k, v] = inputs.map(|name| net.parameter(name, DType::F32, &dims, Expr::clone));
    let out = q.attention(&k, &v, true).name();
    let forward = net.program()?;
    let mut both = forward.clone();
    let found = gradients(&mut both, &[&out], &inputs, &Default::default())?;
    let mut fetches = vec![out.as_str()];
    fetches.extend(found.pairs.iter().map(|(_, gradient)| both.name(*gradient)));
    let before = forget_peak().then(resident_bytes);
    let (mut times, mut planned_bytes, mut measured_bytes) = (vec![], 0, None);
    for (program, fetches) in [(&both, &fetches[..]), (&forward, &fetches[..1])] {
        let mut session = executor.prepare(program, &mut scope, &[], fetches)?;
        let mut steps_ms = vec![];
        for _ in 0..=steps {
            let start = Instant::now();
            session.run(&mut scope)?;
            steps_ms.push(ms(start));
        }
        if times.is_empty() {
            planned_bytes = session.peak_bytes();
            measured_bytes = before.map(|before| peak_resident_bytes().saturating_sub(before));
        }
        times.push(median(steps_ms.split_off(1)));
    }
    Ok(json!({
        "forward_ms": times[1],
        "both_ms": times[0],
        "planned_bytes": planned_bytes,
        "measured_bytes": measured_bytes,
    }))
}
