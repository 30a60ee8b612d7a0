//! Training steps of models of published sizes, in single and in mixed precision, and within a memory budget.
//!
//! `cargo run --release -p autobwd-benches --bin precision -- gpt2 --dtype bfloat16` prints one JSON line: the median time
//! of a step, the losses, and planned and measured memory. `--python PYTHON` runs the same model in the PyTorch of that
//! interpreter, in turn (`torch_peer.py`); `--budgets 20` goes through that many budgets, from the least to the memory of
//! a step without one.

mod image_models;
mod models;

use std::{
    collections::BTreeMap,
    env,
    hash::{DefaultHasher, Hash, Hasher},
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    time::Instant,
};

use autobwd::{DType, Executor, exec::MemoryUse};
use autobwd_benches::{
    BenchResult, finish, forget_peak, json_line, median, ms, peak_resident_bytes, print_profile,
    resident_bytes, round,
};
use clap::Parser;
use models::{PublishedModel, StepMemory, TrainingStep};
use serde_json::{Value, json};

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
    /// The number of words of a row, instead of the model's own.
    #[arg(long)]
    length: Option<usize>,
    /// The bytes that a step may take; values are recomputed until it fits.
    #[arg(long)]
    budget: Option<usize>,
    /// Variables that are recomputed.
    #[arg(long, value_delimiter = ',', conflicts_with_all = ["budget", "budgets"])]
    without: Vec<String>,
    /// Goes through this number of budgets, each in a process of its own.
    #[arg(long, conflicts_with = "budget")]
    budgets: Option<usize>,
    /// Prints the times of operators for that many seconds first.
    #[arg(long)]
    profile: Option<f64>,
    /// Runs both in turn, PyTorch with this interpreter, and prints medians and ratios.
    #[arg(long)]
    python: Option<PathBuf>,
    /// Number of runs of each with `--python`.
    #[arg(long, default_value_t = 3)]
    repeat: usize,
    /// PyTorch compiles its model.
    #[arg(long, requires = "python")]
    compile: bool,
}

fn dtype(name: &str) -> Result<DType, String> {
    let known = DType::from_name(name).filter(|dtype| *dtype == DType::F32 || dtype.is_half());
    known.ok_or_else(|| "float32, float16 and bfloat16 are possible".into())
}

fn main() -> ExitCode {
    finish(run(&Args::parse()))
}

fn run(args: &Args) -> BenchResult<ExitCode> {
    let line = match (&args.python, args.budgets) {
        (Some(python), _) => beside_torch(args, python)?,
        (None, Some(count)) => within_budgets(args, count)?,
        (None, None) => alone(args)?,
    };
    println!("{line}");
    Ok(ExitCode::SUCCESS)
}

/// Runs this program once, with further options.
fn again(options: &[String]) -> BenchResult<Value> {
    let mut own = env::args_os().skip(1);
    let mut command = Command::new(env::current_exe()?);
    while let Some(arg) = own.next() {
        match arg.to_str() {
            Some("--compile") => {}
            Some("--python" | "--repeat" | "--budgets") => _ = own.next(),
            _ => _ = command.arg(arg),
        }
    }
    json_line(command.args(options))
}

/// Runs the model within budgets and prints a line for each. Returns what all have in common.
fn within_budgets(args: &Args, count: usize) -> BenchResult<Value> {
    let unlimited = again(&[])?;
    let most = unlimited["planned_bytes"].as_u64().ok_or("no planned bytes")? as usize;
    let within = |bytes| args.model.step(args.dtype, args.length, StepMemory::Within(bytes, args.threads));
    let refused = within(0);
    let refused = refused.err().ok_or("no byte is enough")?.to_string();
    let (_, least) = refused.split_once(": a run takes ").ok_or_else(|| refused.clone())?;
    let least: usize = least.split(',').next().unwrap_or_default().parse()?;
    let (mut farthest, mut again_before) = (0.0_f64, f64::INFINITY);
    let (mut is_monotone, mut has_same_bits) = (true, true);
    for step in 0..count {
        let bytes = least + (most - least) * step / (count - 1).max(1);
        let start = Instant::now();
        let step = within(bytes)?.budgeted.ok_or("no budget")?;
        let search_ms = round(ms(start), 1);
        // A process of its own, so that memory freed by the search does not hide what a run takes.
        let names = step.recomputed.names.join(",");
        let line = again(&if names.is_empty() { vec![] } else { vec!["--without".into(), names] })?;
        if line["planned_bytes"].as_u64() != Some(step.memory.total() as u64) {
            return Err("a budgeted step takes other memory than planned".into());
        }
        let number = |key: &str| line[key].as_f64().unwrap_or(f64::NAN);
        let off_by = number("measured_bytes") / number("planned_bytes") - 1.0;
        farthest = farthest.max(off_by.abs());
        is_monotone &= step.forward_again() <= again_before;
        again_before = step.forward_again();
        has_same_bits &= line["bits"] == unlimited["bits"];
        let row = json!({
            "budget_bytes": bytes,
            "planned_bytes": line["planned_bytes"],
            "measured_bytes": line["measured_bytes"],
            "off_by": round(off_by, 4),
            "forward_again": round(step.forward_again(), 4),
            "search_ms": search_ms,
            "median_ms": line["median_ms"],
        });
        println!("{row}");
    }
    Ok(json!({
        "model": args.model.name(),
        "budgets": count,
        "least_bytes": least,
        "most_bytes": most,
        "measured_off_by": round(farthest, 4),
        "is_monotone": is_monotone,
        "has_same_bits": has_same_bits,
    }))
}

/// Runs this program and PyTorch in turn.
fn beside_torch(args: &Args, python: &Path) -> BenchResult<Value> {
    let mut runs = vec![];
    for _ in 0..args.repeat.max(1) {
        let mut there = Command::new(python);
        there.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/precision/torch_peer.py"));
        let numbers = [args.threads, args.steps, args.model.length(args.length)].map(|n| n.to_string());
        there
            .args([args.model.name().as_str(), args.dtype.name()])
            .args(numbers)
            .arg(args.compile.to_string());
        runs.push([again(&[])?, json_line(&mut there)?]);
    }
    let of = |side: usize, key: &str| {
        median(runs.iter().map(|run| run[side][key].as_f64().unwrap_or(f64::NAN)).collect())
    };
    Ok(json!({
        "model": args.model.name(),
        "dtype": args.dtype.name(),
        "threads": args.threads,
        "length": args.length,
        "compiled": args.compile,
        "median_ms": of(0, "median_ms"),
        "torch_median_ms": of(1, "median_ms"),
        "ratio": round(of(0, "median_ms") / of(1, "median_ms"), 3),
        "peak_rss_mb": of(0, "peak_rss_mb"),
        "torch_peak_rss_mb": of(1, "peak_rss_mb"),
    }))
}

/// Times the steps of the model.
fn alone(args: &Args) -> BenchResult<Value> {
    let mut executor = Executor::with_threads(args.threads);
    let without: Vec<&str> = args.without.iter().map(String::as_str).collect();
    let memory = match args.budget {
        Some(bytes) => StepMemory::Within(bytes, args.threads),
        None if without.is_empty() => StepMemory::Everything,
        None => StepMemory::Without(&without),
    };
    let TrainingStep { net, mut scope, loss, budgeted } = args.model.step(args.dtype, args.length, memory)?;
    let program = net.program()?;
    let before = forget_peak().then(resident_bytes);
    executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
    let mut session = executor.prepare(&program, &mut scope, &[], &[&loss])?;
    let planned = MemoryUse::of(&session, &program, &scope);
    if let Some(budgeted) = &budgeted {
        eprintln!("{}", budgeted.recomputed);
    }
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
    let mut bits = DefaultHasher::new();
    for (name, value) in scope.iter().collect::<BTreeMap<_, _>>() {
        (name, value.bytes()).hash(&mut bits);
    }
    Ok(json!({
        "lib": "autobwd",
        "model": args.model.name(),
        "dtype": args.dtype.name(),
        "threads": args.threads,
        "median_ms": round(median(times.split_off(1)), 1),
        "losses": losses,
        "bits": format!("{:016x}", bits.finish()),
        "budget_bytes": args.budget,
        "planned_bytes": planned.total(),
        "planned": planned.parts().into_iter().collect::<BTreeMap<_, _>>(),
        "measured_bytes": before.map(|before| peak_resident_bytes().saturating_sub(before)),
        "peak_rss_mb": round(peak_resident_bytes() as f64 / 1e6, 1),
    }))
}
