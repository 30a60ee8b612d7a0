//! Compares training steps with other libraries: installs them, runs all in turn, and writes a table into `README.md`
//! and a chart, `benches/peers.svg`. A library with wrong losses is omitted, with the reason.
//!
//! `cargo run --release -p autobwd-benches --bin peers -- --repeat 3`. Needs Python 3 with `venv` and, for the first
//! run, the network; libraries are installed in `target/peers`, those in Rust are built from `benches/peers/rust`.

mod chart;
mod libraries;
mod table;
mod tape;

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    process::{Command, ExitCode},
};

use autobwd_benches::{BenchResult, finish, median, output, workload::Workload};
use clap::Parser;

use libraries::LIBRARIES;

/// Times the workloads in autobwd and in other libraries.
#[derive(Parser)]
struct Args {
    /// Number of runs of each; the median counts.
    #[arg(long, default_value_t = 3)]
    repeat: usize,
    /// Seconds to measure for in each run.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Only this number of threads, instead of one and two.
    #[arg(long)]
    threads: Option<usize>,
    /// Only these workloads.
    workloads: Vec<Workload>,
    /// Print the table instead of writing it and the chart.
    #[arg(long)]
    print: bool,
    /// Instead, time recorded operators in libraries with a tape: the table in `benches/README.md`.
    #[arg(long, conflicts_with_all = ["workloads", "threads", "seconds"])]
    tape: bool,
}

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
const WORKLOADS: [Workload; 7] = [
    Workload::Mlp,
    Workload::TinyMlp,
    Workload::ChainSmall,
    Workload::ChainBig,
    Workload::Lenet,
    Workload::Lstm,
    Workload::Gpt,
];

/// Results of one library on one workload with one number of threads.
#[derive(Clone, Debug, Default)]
struct Times {
    /// Median milliseconds of a step, for each run.
    median_ms: Vec<f64>,
    peak_mb: f64,
}

/// By threads, workload and library; or the reason for their absence.
type Results = BTreeMap<(usize, &'static str, &'static str), Result<Times, String>>;

/// The median of the runs, if there are any.
fn median_of(results: &Results, threads: usize, workload: Workload, library: &'static str) -> Option<f64> {
    let times = results.get(&(threads, workload.name(), library))?.as_ref().ok()?;
    Some(median(times.median_ms.clone()))
}

fn main() -> ExitCode {
    finish(run(&Args::parse()))
}

fn run(args: &Args) -> BenchResult<ExitCode> {
    let root = fs::canonicalize(ROOT)?;
    if args.tape {
        let table = tape::table(&root, args.repeat)?;
        return written(args, &root.join("benches/README.md"), "tape", &table);
    }
    let results = measured_in_turn(args, &root);
    if !args.print {
        fs::write(root.join("benches/peers.svg"), chart::of(&results)?)?;
    }
    written(args, &root.join("README.md"), "peers", &table::of(&results)?)
}

fn measured_in_turn(args: &Args, root: &Path) -> Results {
    let starts = libraries::install(root, "workloads", &LIBRARIES);
    let seconds = args.seconds.to_string();
    let wanted = |workload: &Workload| {
        args.workloads.is_empty() || args.workloads.iter().any(|wanted| wanted.name() == workload.name())
    };
    let mut results = Results::new();
    for count in args.threads.map_or(vec![1, 2], |threads| vec![threads]) {
        let threads = count.to_string();
        for workload in WORKLOADS.into_iter().filter(wanted) {
            // In turn, so that other load slows all alike.
            for library in LIBRARIES.repeat(args.repeat) {
                let Some(start) = starts.get(library) else { continue };
                let name = workload.name();
                let found = results.entry((count, name, library)).or_insert_with(|| Ok(Times::default()));
                let Ok(times) = found else { continue };
                let arguments: &[_] = match library {
                    "autobwd" => &[name, "--threads", &threads, "--seconds", &seconds],
                    _ => &[name],
                };
                let mut command = libraries::command(start, arguments, count);
                match measured(command.env("SECONDS", &seconds).current_dir(root), workload) {
                    Ok((median_ms, peak_mb)) => {
                        times.median_ms.push(median_ms);
                        times.peak_mb = times.peak_mb.max(peak_mb);
                        eprintln!("{name}, {threads} threads, {library}: {median_ms} ms");
                    }
                    Err(e) => {
                        eprintln!("{name}, {threads} threads, {library}: {e}");
                        // The last line of the error has the reason.
                        let reason = e.to_string();
                        let reason = reason.trim().lines().last().unwrap_or_default();
                        *found = Err(reason.trim_start_matches("error: ").into());
                    }
                }
            }
        }
    }
    results
}

/// Writes a table to its place in a file, or prints it.
fn written(args: &Args, file: &Path, place: &str, table: &str) -> BenchResult<ExitCode> {
    if args.print {
        println!("{table}");
    } else {
        fs::write(file, table::replaced(&fs::read_to_string(file)?, place, table)?)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Median milliseconds of a step, and peak resident memory.
fn measured(command: &mut Command, workload: Workload) -> BenchResult<(f64, f64)> {
    let line = line(command)?;
    let number = |key: &str| line[key].as_f64().ok_or_else(|| format!("no `{key}` in {line}"));
    let (loss1, loss10) = (number("loss1")?, number("loss10")?);
    if !workload.expects(loss1, loss10) {
        let (wanted1, wanted10) = workload.expected();
        return Err(format!("losses {loss1} and {loss10} instead of {wanted1} and {wanted10}").into());
    }
    Ok((number("median_ms")?, number("peak_rss_mb")?))
}

/// The last line that a command prints.
fn line(command: &mut Command) -> BenchResult<serde_json::Value> {
    let text = output(command)?;
    Ok(serde_json::from_str(text.lines().last().ok_or("nothing was measured")?)?)
}
