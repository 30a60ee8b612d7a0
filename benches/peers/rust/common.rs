//! Shared code of the Rust peers: data, initial values and timing are those of autobwd.
//!
//! `THREADS=1 SECONDS=2 …_peer mlp` prints the JSON line of a workload, `…_peer tape` those of rows of operators.

#[path = "../../common/workload/data.rs"]
mod data;
#[path = "../../common/timing.rs"]
pub mod timing;

use std::{
    env,
    error::Error,
    process::ExitCode,
    time::{Duration, Instant},
};

pub use data::{integers, numbers};

/// Errors of all libraries.
pub type Outcome<T> = Result<T, Box<dyn Error>>;
/// A training step, which returns the loss.
pub type Step = Box<dyn FnMut() -> Outcome<f64>>;
/// Records a row of operators on tensors of one element, runs its backward pass and frees it: durations of forward and
/// backward.
pub type Row = fn(usize) -> Outcome<[Duration; 2]>;

/// Learning rate of the networks.
pub const RATE: f64 = 0.01;
/// Learning rate of the chains.
pub const CHAIN_RATE: f64 = 1e-5;

/// Runs a peer; `step` makes the step of a workload, or returns why the library has none.
pub fn run(lib: &str, step: fn(&str) -> Outcome<Step>, rows: &[(&'static str, Row)]) -> ExitCode {
    if let Err(e) = measure(lib, step, rows) {
        eprintln!("error: {e}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn measure(lib: &str, step: fn(&str) -> Outcome<Step>, rows: &[(&'static str, Row)]) -> Outcome<()> {
    let workload = env::args().nth(1).ok_or("which workload?")?;
    if workload == "tape" {
        timing::rows(lib, 1000, 201, rows.iter().copied())?;
        return Ok(());
    }
    let start = Instant::now();
    let step = step(&workload)?;
    let build_ms = timing::ms(start);
    let number = |name: &str, default| env::var(name).map_or(Ok(default), |text| text.parse::<f64>());
    let steps = timing::Steps::measure(number("SECONDS", 2.0)?, step)?;
    println!("{}", steps.to_json(lib, &workload, number("THREADS", 2.0)? as usize, build_ms));
    Ok(())
}

/// Weights from a seed, `inputs` by `outputs`.
pub fn weights(seed: u32, inputs: usize, outputs: usize) -> Vec<f32> {
    numbers(seed, inputs * outputs, 1.0 / (inputs as f64).sqrt())
}

/// One-hot rows.
pub fn one_hot(indices: &[i64], classes: usize) -> Vec<f32> {
    indices.iter().flat_map(|&i| (0..classes).map(move |c| f32::from(c as i64 == i))).collect()
}
