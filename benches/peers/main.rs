//! How fast others train the workloads, side by side with autobwd: installs them, runs all in turn, and writes a table
//! into `README.md` and a chart, `benches/peers.svg`.
//!
//! `cargo run --release -p autobwd-benches --bin peers -- --repeat 3`. Needs Python 3 with `venv` and, for the first run,
//! the network; what is installed is below `target/peers`.

mod chart;
mod table;

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use autobwd_benches::{Outcome, finish, output};
use clap::Parser;

/// Times the workloads in autobwd and in other libraries, side by side.
#[derive(Parser)]
struct Args {
    /// How often each is run; medians of that many count.
    #[arg(long, default_value_t = 3)]
    repeat: usize,
    /// Seconds to measure for in each run.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Only that many threads, instead of one and two.
    #[arg(long)]
    threads: Option<usize>,
    /// Only these workloads.
    workloads: Vec<String>,
    /// Print the table instead of writing it and the chart.
    #[arg(long)]
    print: bool,
}

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
const WORKLOADS: [&str; 7] = ["mlp", "tiny_mlp", "chain_small", "chain_big", "lenet", "lstm", "gpt"];
/// Ourselves first.
const LIBRARIES: [&str; 4] = ["autobwd", "JAX", "PyTorch", "PyTorch, compiled"];

/// What is known of one library on one workload with so many threads.
#[derive(Clone, Debug, Default)]
struct Times {
    /// Median milliseconds of a step, one a run.
    median_ms: Vec<f64>,
    peak_mb: f64,
}

/// By threads, workload and library.
type Results = BTreeMap<(usize, &'static str, &'static str), Times>;

fn main() -> ExitCode {
    finish(run(&Args::parse()))
}

fn run(args: &Args) -> Outcome<ExitCode> {
    let root = fs::canonicalize(ROOT)?;
    let python = install(&root)?;
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let build = ["build", "--release", "--quiet", "-p", "autobwd-benches", "--bin", "workloads"];
    output(Command::new(cargo).current_dir(&root).args(build))?;
    let ours = env::current_exe()?.with_file_name("workloads");

    let wanted = |workload: &&str| args.workloads.is_empty() || args.workloads.iter().any(|w| w == workload);
    let mut results = Results::new();
    for threads in args.threads.map_or(vec![1, 2], |threads| vec![threads]) {
        for workload in WORKLOADS.into_iter().filter(wanted) {
            // In turn, so that a busy neighbour slows all alike.
            for _ in 0..args.repeat {
                for library in LIBRARIES {
                    let mut command = match library {
                        "autobwd" => on_cores(&ours, threads),
                        _ => on_cores(&python, threads),
                    };
                    let command = command_line(&mut command, library, workload, threads, args.seconds);
                    match measured(command.current_dir(&root)) {
                        Ok((median_ms, peak_mb)) => {
                            let times = results.entry((threads, workload, library)).or_default();
                            times.median_ms.push(median_ms);
                            times.peak_mb = times.peak_mb.max(peak_mb);
                            eprintln!("{workload}, {threads} threads, {library}: {median_ms} ms");
                        }
                        Err(e) => eprintln!("{workload}, {threads} threads, {library}: {e}"),
                    }
                }
            }
        }
    }
    let table = table::of(&results)?;
    if args.print {
        println!("{table}");
        return Ok(ExitCode::SUCCESS);
    }
    let readme = root.join("README.md");
    fs::write(&readme, table::replaced(&fs::read_to_string(&readme)?, &table)?)?;
    fs::write(root.join("benches/peers.svg"), chart::of(&results)?)?;
    Ok(ExitCode::SUCCESS)
}

/// Installs the Python peers, once, and returns their interpreter.
fn install(root: &Path) -> Outcome<PathBuf> {
    let venv = root.join("target/peers/venv");
    let (python, done) = (venv.join("bin/python"), venv.join("installed"));
    if !done.exists() {
        eprintln!("installing into {}", venv.display());
        output(Command::new("python3").args(["-m", "venv"]).arg(&venv))?;
        let requirements = root.join("benches/peers/requirements.txt");
        output(Command::new(&python).args(["-m", "pip", "install", "--quiet", "-r"]).arg(requirements))?;
        fs::write(done, "")?;
    }
    Ok(python)
}

/// A command that stays on one core where there is to be one thread: libraries do not all keep to what they are told.
fn on_cores(program: &Path, threads: usize) -> Command {
    if threads > 1 || Command::new("taskset").arg("--version").output().is_err() {
        return Command::new(program);
    }
    let mut command = Command::new("taskset");
    command.args(["-c", "0"]).arg(program);
    command
}

fn command_line<'a>(
    command: &'a mut Command,
    library: &str,
    workload: &str,
    threads: usize,
    seconds: f64,
) -> &'a mut Command {
    let (threads, seconds) = (threads.to_string(), seconds.to_string());
    match library {
        "autobwd" => command.args([workload, "--check", "--threads", &threads, "--seconds", &seconds]),
        _ => {
            let (file, mode) = match library {
                "JAX" => ("benches/peers/jax_peer.py", ""),
                "PyTorch" => ("benches/peers/torch_peer.py", "eager"),
                _ => ("benches/peers/torch_peer.py", "compile"),
            };
            command.args([file, workload, mode]).env("THREADS", threads).env("SECONDS", seconds)
        }
    }
}

/// Median milliseconds of a step, and the most memory that was resident.
fn measured(command: &mut Command) -> Outcome<(f64, f64)> {
    let text = output(command)?;
    let line = text.lines().last().ok_or("nothing was measured")?;
    let line: serde_json::Value = serde_json::from_str(line)?;
    let number = |key: &str| line[key].as_f64().ok_or_else(|| format!("no `{key}` in {line}"));
    Ok((number("median_ms")?, number("peak_rss_mb")?))
}
