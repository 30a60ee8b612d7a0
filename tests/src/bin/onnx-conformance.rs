//! Runs ONNX's node tests: `onnx-conformance FOLDER [--filter TEXT] [--gradients]`.

use std::{path::PathBuf, process::ExitCode};

use autobwd_tests::onnx::{NodeTestOutcome, TestOptions, run_all, tests};
use clap::Parser;

/// Runs ONNX's node tests and prints a line for each.
#[derive(Parser)]
struct Args {
    /// The folder of the tests, `test_*/model.onnx`.
    folder: PathBuf,
    /// Runs tests whose names contain this text.
    #[arg(long, default_value = "")]
    filter: String,
    /// Compares gradients with central differences, too.
    #[arg(long)]
    gradients: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let folders = match tests(&args.folder, &args.filter) {
        Ok(folders) => folders,
        Err(e) => {
            eprintln!("{}: {e}", args.folder.display());
            return ExitCode::from(2);
        }
    };
    let outcomes = run_all(&folders, &TestOptions { gradients: args.gradients });
    let (mut counts, mut checked) = ([0; 3], 0);
    for (folder, outcome) in folders.iter().zip(&outcomes) {
        let name = folder.file_name().unwrap_or_default();
        println!("{}: {outcome}", name.display());
        counts[match outcome {
            NodeTestOutcome::Passed(gradients) => {
                checked += usize::from(*gradients > 0);
                0
            }
            NodeTestOutcome::Failed(_) => 1,
            NodeTestOutcome::Skipped(_) => 2,
        }] += 1;
    }
    if args.gradients {
        println!("gradients of {checked} tests were compared");
    }
    let [passed, failed, skipped] = counts;
    println!("{passed} passed, {failed} failed, {skipped} skipped");
    ExitCode::from(u8::from(failed > 0))
}
