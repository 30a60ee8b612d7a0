//! What the measuring commands share: workloads, figures, the way a command ends, and crates that are generated to be
//! measured.

mod alone;
mod generated;
pub mod source;
pub mod workload;

pub use alone::alone;
pub use generated::{Generated, Profile, output};

use std::{error::Error, fs, process::ExitCode, time::Instant};

/// What a command returns; errors of all kinds end it alike.
pub type Outcome<T> = Result<T, Box<dyn Error>>;

/// Ends a command: an error is printed on stderr.
pub fn finish(outcome: Outcome<ExitCode>) -> ExitCode {
    outcome.unwrap_or_else(|e| {
        eprintln!("error: {e}");
        ExitCode::FAILURE
    })
}

/// Milliseconds since then.
pub fn ms(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

/// The value below which that share of the values is.
///
/// # Panics
/// There are no values.
pub fn quantile(values: &mut [f64], share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values[(values.len() as f64 * share) as usize]
}

/// The value in the middle.
///
/// # Panics
/// There are no values.
pub fn median(mut values: Vec<f64>) -> f64 {
    quantile(&mut values, 0.5)
}

/// Memory of this process that is resident now; 0 where the system does not tell.
pub fn resident_bytes() -> usize {
    status_bytes("VmRSS:")
}

/// Most memory that this process ever had resident; 0 where the system does not tell.
pub fn peak_resident_bytes() -> usize {
    status_bytes("VmHWM:")
}

fn status_bytes(key: &str) -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with(key));
    line.and_then(|line| line.split_whitespace().nth(1)?.parse::<usize>().ok()).map_or(0, |kb| kb * 1024)
}

/// Rounds to a number of digits behind the point.
pub fn round(x: f64, digits: i32) -> f64 {
    let scale = 10_f64.powi(digits);
    (x * scale).round() / scale
}
