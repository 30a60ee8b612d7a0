//! Runs attacks and a few samples under valgrind's memcheck, which fails on accesses outside of allocations and on
//! decisions based on uninitialised bytes.
//!
//! `cargo run -p autobwd-benches --bin memcheck` builds the tests as `cargo test` does; it takes some minutes. Memcheck
//! cannot detect errors within one allocation, such as an arena.

use std::{
    env,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
};

use autobwd_benches::{BenchResult, finish};
use serde_json::Value;

/// Tests to run, by target, with the instruction set of kernels, and filters on their names. Valgrind does not support
/// AVX-512. Tests with many threads run without AVX2: for each thread, the matrix product library allocates twice the
/// size of the largest cache, which valgrind may not have.
const TESTS: [(&str, &str, &[&str]); 2] = [
    ("framework", "baseline", &["attacks::"]),
    ("samples", "avx2", &["matmul_v2", "conv2d::", "lstm", "concat", "lookup_table_v2", "top_k_v2"]),
];
/// Without it, valgrind returns the exit code of the tests.
const FOUND: &str = "--error-exitcode=99";

fn main() -> ExitCode {
    finish(run())
}

fn run() -> BenchResult<ExitCode> {
    for (target, instructions, filters) in TESTS {
        let test = built(target)?;
        for filter in filters {
            let mut valgrind = Command::new("valgrind");
            valgrind.args(["--tool=memcheck", "--quiet", "--fair-sched=yes", FOUND]);
            // Tests of the framework find their files relative to cargo's working directory.
            valgrind.arg(&test).arg(filter).args(["--test-threads", "1"]).current_dir(root().join("tests"));
            let output = valgrind.env("AUTOBWD_ISA", instructions).stdin(Stdio::null()).output()?;
            let text = String::from_utf8_lossy(&output.stdout);
            if !output.status.success() {
                let errors = String::from_utf8_lossy(&output.stderr);
                return Err(format!("`{target} {filter}` fails under valgrind:\n{text}{errors}").into());
            }
            let result = text.lines().find(|line| line.starts_with("test result:")).unwrap_or_default();
            if result.contains(" 0 passed") {
                return Err(format!("no test of `{target}` has `{filter}` in its name").into());
            }
            println!("{target} {filter}: {result}");
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The binary of a test target.
fn built(target: &str) -> BenchResult<PathBuf> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build.args(["test", "--no-run", "--message-format=json", "--test", target]);
    let output = build.current_dir(root()).stderr(Stdio::inherit()).output()?;
    let text = String::from_utf8(output.stdout)?;
    let messages = text.lines().rev().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut of_target = messages.filter(|message| message["target"]["name"] == target);
    let binary = of_target.find_map(|message| message["executable"].as_str().map(PathBuf::from));
    binary.filter(|_| output.status.success()).ok_or_else(|| format!("`{target}` cannot be built").into())
}
