//! What many operators cost their author: time to check and to build, size of the binary, time to start.
//!
//! `cargo run --release -p autobwd-benches --bin authoring -- --operators 200` generates crates under
//! `target/authoring`, builds what they depend on, and prints one JSON line a figure.

use std::process::{Command, ExitCode};

use autobwd_benches::{
    Generated, Outcome, Profile, finish, median, output, round,
    source::{self, Content},
};
use clap::Parser;
use serde_json::{Value, json};

/// Measures what many operators cost their author, one JSON line a figure.
#[derive(Parser)]
struct Args {
    /// Number of operators, half of them with a gradient operator besides.
    #[arg(long, default_value_t = 200)]
    operators: usize,
    /// How often every figure is measured, in turn with the others.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
}

/// Crates that are compared: package, what it holds, whether it holds any.
const PACKAGES: [(&str, Content, bool); 3] = [
    ("empty", Content::Operators, false),
    ("structs", Content::Structs, true),
    ("operators", Content::Operators, true),
];

const DEBUG: Profile = Profile { release: false, fat_lto: false };
const RELEASE: Profile = Profile { release: true, fat_lto: false };
/// How often a binary is started.
const STARTS: usize = 51;

fn main() -> ExitCode {
    finish(run(&Args::parse()))
}

fn run(args: &Args) -> Outcome<ExitCode> {
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

fn generate(operators: usize) -> Outcome<Generated> {
    let generated = Generated::new("authoring", &PACKAGES.map(|(package, ..)| package))?;
    for (package, content, any) in PACKAGES {
        generated.manifest(package, "")?;
        let library = source::library(content, if any { operators } else { 0 });
        generated.write(&format!("{package}/src/lib.rs"), &library)?;
        generated.write(&format!("{package}/src/main.rs"), &source::main(package))?;
    }
    Ok(generated)
}

/// Medians by package of the seconds that cargo takes after a change to the library.
fn seconds(generated: &Generated, profile: Profile, command: &str, rounds: usize) -> Outcome<[f64; 3]> {
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

fn sizes(generated: &Generated, count: usize) -> Outcome<()> {
    let size = |package| Ok::<_, std::io::Error>(generated.built(RELEASE, package).metadata()?.len());
    let (empty, operators) = (size("empty")?, size("operators")?);
    print("binary_bytes", count, json!({ "empty": empty, "operators": operators }));
    Ok(())
}

/// Microseconds of the first look at the registry, over many starts.
fn starts(generated: &Generated, count: usize) -> Outcome<()> {
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
