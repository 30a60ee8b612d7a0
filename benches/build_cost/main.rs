//! Costs of builds: CPU-seconds and seconds of clean builds and of a rebuild, and the size of a binary.
//!
//! `cargo run -p autobwd-benches --bin build_cost -- release tests touch` prints a JSON line for each. It builds in
//! `target/build_cost`, which is empty for `release` and `tests`, and needs Linux and the command `size`.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
    time::{Instant, SystemTime},
};

use autobwd_benches::{BenchResult, finish, ms, output, round};
use clap::{Parser, ValueEnum};
use serde_json::{Value, json};

/// Measures builds, one JSON line each.
#[derive(Parser)]
struct Args {
    /// Builds to measure.
    #[arg(required = true)]
    builds: Vec<BuildKind>,
}

#[derive(Clone, Copy, ValueEnum)]
enum BuildKind {
    /// A clean release build of the example `digits`, and the bytes of its text segment.
    Release,
    /// A clean build of all tests, and their run: takes long.
    Tests,
    /// The samples of `relu`, after a change to one file of operators.
    Touch,
}

/// The file of operators to change.
const TOUCHED: &str = "ops/src/activation.rs";
/// Ticks of `/proc` in a second, on every Linux.
const TICKS: f64 = 100.0;

fn main() -> ExitCode {
    finish(run(&Args::parse()))
}

fn run(args: &Args) -> BenchResult<ExitCode> {
    let target = BuildTarget::new()?;
    for build in &args.builds {
        println!("{}", target.measure(*build)?);
    }
    Ok(ExitCode::SUCCESS)
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The target folder of all builds.
struct BuildTarget {
    folder: PathBuf,
}

impl BuildTarget {
    fn new() -> BenchResult<BuildTarget> {
        let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
        Ok(BuildTarget { folder: std::path::absolute(target)?.join("build_cost") })
    }

    fn measure(&self, build: BuildKind) -> BenchResult<Value> {
        match build {
            BuildKind::Release => {
                self.empty()?;
                let cost = self.cargo(&["build", "--release", "--example", "digits"])?;
                let text = text_bytes(&self.folder.join("release/examples/digits"))?;
                Ok(json!({ "build": "release", "clean": cost.json(), "text_bytes": text }))
            }
            BuildKind::Tests => {
                self.empty()?;
                let built = self.cargo(&["test", "--no-run"])?;
                let run = self.cargo(&["test"])?;
                let all = BuildCost { cpu: built.cpu + run.cpu, wall: built.wall + run.wall };
                Ok(json!({
                    "build": "tests", "clean": built.json(), "run": run.json(), "together": all.json(),
                }))
            }
            BuildKind::Touch => {
                let samples = ["test", "--package", "autobwd-tests", "--test", "samples"];
                self.cargo(&[&samples[..], &["--no-run"]].concat())?;
                fs::File::options()
                    .append(true)
                    .open(root().join(TOUCHED))?
                    .set_modified(SystemTime::now())?;
                let cost = self.cargo(&[&samples[..], &["relu"]].concat())?;
                Ok(json!({ "build": "touch", "touched": TOUCHED, "rebuilt_and_run": cost.json() }))
            }
        }
    }

    fn empty(&self) -> BenchResult<()> {
        if self.folder.exists() {
            fs::remove_dir_all(&self.folder)?;
        }
        Ok(fs::create_dir_all(&self.folder)?)
    }

    /// The costs of a cargo command.
    fn cargo(&self, args: &[&str]) -> BenchResult<BuildCost> {
        eprintln!("cargo {}", args.join(" "));
        let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.current_dir(root()).args(args).arg("--quiet").env("CARGO_TARGET_DIR", &self.folder);
        // Cargo's variables for this package must not reach the packages that it builds.
        for (name, _) in env::vars_os() {
            if name.to_str().is_some_and(|name| name.starts_with("CARGO_PKG_")) {
                cargo.env_remove(name);
            }
        }
        let (cpu, start) = (children_cpu()?, Instant::now());
        let status = cargo.stdin(Stdio::null()).stdout(Stdio::null()).status()?;
        let cost = BuildCost { cpu: children_cpu()? - cpu, wall: ms(start) / 1e3 };
        if status.success() { Ok(cost) } else { Err(format!("`cargo {}` fails", args.join(" ")).into()) }
    }
}

struct BuildCost {
    /// Seconds on all cores, user and system.
    cpu: f64,
    wall: f64,
}

impl BuildCost {
    fn json(&self) -> Value {
        json!({ "cpu_seconds": round(self.cpu, 1), "wall_seconds": round(self.wall, 1) })
    }
}

/// CPU-seconds of all terminated child processes and their children.
fn children_cpu() -> BenchResult<f64> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    // The second field, a name in parentheses, may contain spaces; fields 16 and 17 are user and system time.
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    let ticks: Vec<f64> = fields.skip(13).take(2).map(str::parse).collect::<Result<_, _>>()?;
    Ok(ticks.iter().sum::<f64>() / TICKS)
}

/// Bytes of a binary's text segment: code, and constants that are not relocated.
fn text_bytes(binary: &Path) -> BenchResult<u64> {
    let table = output(Command::new("size").arg(binary))?;
    let text = table.lines().nth(1).and_then(|line| line.split_whitespace().next());
    Ok(text.ok_or_else(|| format!("there is no size in {table:?}"))?.parse()?)
}
