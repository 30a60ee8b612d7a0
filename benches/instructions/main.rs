//! Instruction counts of steps of the workloads dominated by overhead, by valgrind, so that regressions show on a busy
//! machine, too.
//!
//! `cargo run --release -p autobwd-benches --bin instructions` compares with `benches/instructions.txt` and fails if a
//! count is more than 2 % higher; `UPDATE=1` rewrites the file.

use std::{env, fmt::Write as _, fs, path::Path, process::Command, process::ExitCode};

use autobwd_benches::{BenchResult, finish};

const WORKLOADS: [&str; 2] = ["tiny_mlp", "chain_small"];
/// Steps of two runs, whose difference consists of steps only.
const STEPS: [u64; 2] = [20, 60];
/// Valgrind does not support AVX-512.
const INSTRUCTIONS: &str = "avx2";
const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/instructions.txt");

fn main() -> ExitCode {
    finish(run())
}

fn run() -> BenchResult<ExitCode> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let build = ["build", "--release", "--quiet", "-p", "autobwd-benches", "--bin", "workloads"];
    if !Command::new(cargo).current_dir(root).args(build).status()?.success() {
        return Err("the workloads cannot be built".into());
    }
    let known = fs::read_to_string(FILE).unwrap_or_default();
    let (mut text, mut regressed) = (String::new(), false);
    for workload in WORKLOADS {
        let [few, many] = [instructions(workload, STEPS[0])?, instructions(workload, STEPS[1])?];
        let each = many.saturating_sub(few) / (STEPS[1] - STEPS[0]);
        let before = known.lines().find_map(|line| line.strip_prefix(workload)?.trim().parse::<u64>().ok());
        println!(
            "{workload}: {each} instructions a step, {} before",
            before.map_or("unknown".into(), |n| n.to_string())
        );
        regressed |= before.is_some_and(|before| each > before + before / 50);
        writeln!(text, "{workload} {each}")?;
    }
    if env::var_os("UPDATE").is_some() {
        fs::write(FILE, text)?;
    } else if regressed {
        return Err("there are more instructions than there were; `UPDATE=1` accepts them".into());
    }
    Ok(ExitCode::SUCCESS)
}

/// Instructions of a whole run of `steps` steps.
fn instructions(workload: &str, steps: u64) -> BenchResult<u64> {
    let workloads = env::current_exe()?.with_file_name("workloads");
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]).arg(workloads);
    command.args([workload, "--threads", "1", "--steps", &steps.to_string()]);
    let output = command.env("AUTOBWD_ISA", INSTRUCTIONS).output()?;
    let text = String::from_utf8_lossy(&output.stderr);
    let count = text.lines().find_map(|line| line.split_once("Collected :")?.1.trim().parse().ok());
    count.filter(|_| output.status.success()).ok_or_else(|| format!("valgrind fails:\n{text}").into())
}
