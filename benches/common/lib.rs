//! Shared code of the benchmarks: workloads, statistics, results of commands, and generated crates.

mod alone;
mod exchange;
mod generated;
mod in_turn;
mod peak;
mod profile;
pub mod source;
mod timing;
pub mod workload;

pub use alone::alone;
pub use exchange::{feed, json_line, python_with, relative, step, step_ms};
pub use generated::{Generated, Profile, output};
pub use in_turn::{InTurn, MOST_ROUNDS, Peer, ROUNDS};
pub use peak::peak_gflops;
pub use profile::print_profile;
pub use timing::{
    StepTimes, forget_peak, median, ms, peak_resident_bytes, quantile, resident_bytes, round, rows,
};

use std::{error::Error, process::ExitCode};

/// Result of a command, for errors of all kinds.
pub type BenchResult<T> = Result<T, Box<dyn Error>>;

/// Ends a command; prints an error to stderr.
pub fn finish(outcome: BenchResult<ExitCode>) -> ExitCode {
    outcome.unwrap_or_else(|e| {
        eprintln!("error: {e}");
        ExitCode::FAILURE
    })
}
