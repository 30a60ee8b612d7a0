//! Costs of many operators for their author: time to check and to build, size of the binary, start-up time.
//!
//! `cargo run --release -p autobwd-benches --bin authoring -- --operators 200` generates crates under
//! `target/authoring`, builds their dependencies, and prints one JSON line for each result.

use std::process::{Command, ExitCode};

use autobwd_benches::{
    BenchResult, Generated, Profile, finish, median, output, round,
    source::{self, SourceContent},
};
use clap::Parser;
use serde_json::{Value, json};

/// Measures the costs of many operators for their author, one JSON line for each result.
#[derive(Parser)]
struct Args {
    /// Number of operators, half of them with an additional gradient operator.
    #[arg(long, default_value_t = 200)]
    operators: usize,
    /// Number of repetitions, in turn with the others.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
}

/// Compared crates: package, contents, whether it has operators.
const PACKAGES: [(&str, SourceContent, bool); 3] = [
    ("empty", SourceContent::Operators, false),
    ("structs", SourceContent::Structs, true),
    ("operators", SourceContent::Operators, true),
];

const DEBUG: Profile = Profile { release: false, fat_lto: false };
const RELEASE: Profile = Profile { release: true, fat_lto: false };
/// Number of starts of a binary.
const STARTS: usize = 51;

fn main() -> ExitCode {
    finish(run(&Args::parse()))
}

fn run(args: &Args) -> BenchResult<ExitCode> {
    let generated = generate(args.operators)?;
    eprintln!("in {}: building dependencies", generated.path("").display());
    generated.cargo(DEBUG, "check", &["--workspace"])?;
    generated.cargo(RELEASE, "build", &["--workspace"])?;
    let count = args.operators;
    let [empty, structs, operators] = seconds(&generated, DEBUG, "check", args.rounds)?;
    print("check_s", count, json!({ "empty": empty, "structs": structs, "operators": operators }));
    let each = |more: f64| round(more / count.max(1) as f64 * 1e3, 2);
    let (all, without) = (each(operators - empty), each(structs - empty));
    print(
        "check_ms_per_operator",
        count,
        json!({ "operators": all, "structs": without, "attribute": all - without }),
    );
    let [empty, structs, operators] = seconds(&generated, RELEASE, "build", args.rounds)?;
    print("build_release_s", count, json!({ "empty": empty, "structs": structs, "operators": operators }));
    sizes(&generated, count)?;
    starts(&generated, count)?;
    Ok(ExitCode::SUCCESS)
}

fn print(figure: &str, operators: usize, values: Value) {
    println!("{}", json!({ "figure": figure, "operators": operators, "values": values }));
}

fn generate(operators: usize) -> BenchResult<Generated> {
    let generated = Generated::new("authoring", &PACKAGES.map(|(package, ..)| package))?;
    for (package, content, any) in PACKAGES {
        generated.manifest(package, "")?;
        let library = source::library(content, if any { operators } else { 0 });
        generated.write(&format!("{package}/src/lib.rs"), &library)?;
        generated.write(&format!("{package}/src/main.rs"), &source::main(package))?;
    }
    Ok(generated)
}

/// Median seconds of cargo after a change to the library, for each package.
fn seconds(generated: &Generated, profile: Profile, command: &str, rounds: usize) -> BenchResult<[f64; 3]> {
    let mut times = [const { Vec::new() }; 3];
    for i in 0..rounds.max(1) {
        eprintln!("{command}, round {}", i + 1);
        for ((package, ..), times) in PACKAGES.iter().zip(&mut times) {
            let source = format!("{package}/src/lib.rs");
            times.push(generated.seconds(profile, &source, command, &["--package", package])?);
        }
    }
    Ok(times.map(|times| round(median(times), 3)))
}

fn sizes(generated: &Generated, count: usize) -> BenchResult<()> {
    let size = |package| Ok::<_, std::io::Error>(generated.built(RELEASE, package).metadata()?.len());
    let (empty, operators) = (size("empty")?, size("operators")?);
    print("binary_bytes", count, json!({ "empty": empty, "operators": operators }));
    Ok(())
}

/// Microseconds of the first access to the registry, over many starts.
fn starts(generated: &Generated, count: usize) -> BenchResult<()> {
    for package in ["empty", "operators"] {
        let (mut micros, mut linked) = (vec![], 0);
        for _ in 0..STARTS {
            let printed = output(&mut Command::new(generated.built(RELEASE, package)))?;
            let (seen, time) = printed.trim().split_once(' ').ok_or("the binary prints two numbers")?;
            linked = seen.parse::<usize>()?;
            micros.push(time.parse::<f64>()?);
        }
        print("first_linked_us", count, json!({ package: round(median(micros), 1), "linked": linked }));
    }
    Ok(())
}
