//! What the measuring commands share: workloads, figures, the way a command ends, and crates that are generated to be
//! measured.

mod alone;
mod generated;
pub mod source;
mod timing;
pub mod workload;

pub use alone::alone;
pub use generated::{Generated, Profile, output};
pub use timing::{
    Steps, forget_peak, median, ms, peak_resident_bytes, quantile, resident_bytes, round, rows,
};

use std::{error::Error, process::ExitCode};

/// What a command returns; errors of all kinds end it alike.
pub type Outcome<T> = Result<T, Box<dyn Error>>;

/// Ends a command: an error is printed on stderr.
pub fn finish(outcome: Outcome<ExitCode>) -> ExitCode {
    outcome.unwrap_or_else(|e| {
        eprintln!("error: {e}");
        ExitCode::FAILURE
    })
}
