//! Models that other libraries run, too: their Python, comparisons of results, times of an inference.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

use autobwd::{Result, Scope, Session, Tensor};
use serde_json::Value;

use crate::{BenchResult, median, ms, output};

/// The Python of a virtual environment in `folder`, in which these packages are installed: one call of pip for each list.
///
/// # Errors
/// It cannot be created; a package cannot be installed.
pub fn python_with(folder: &Path, packages: &[&[&str]]) -> BenchResult<PathBuf> {
    let environment = folder.join("venv");
    let python = environment.join("bin/python");
    if !python.exists() {
        output(Command::new("python3").args(["-m", "venv"]).arg(&environment))?;
    }
    for list in packages {
        output(Command::new(&python).args(["-m", "pip", "install", "--quiet"]).args(*list))?;
    }
    Ok(python)
}

/// The last JSON object that a command prints.
///
/// # Errors
/// It fails, or prints none.
pub fn json_line(command: &mut Command) -> BenchResult<Value> {
    let text = output(command)?;
    Ok(serde_json::from_str(text.lines().rev().find(|line| line.starts_with('{')).unwrap_or_default())?)
}

/// The largest difference, relative to the largest magnitude.
pub fn relative(x: &Tensor, y: &Tensor) -> f64 {
    if x.dims() != y.dims() {
        return f64::INFINITY;
    }
    let (x, y) = (x.to_f64s(), y.to_f64s());
    let largest = y.iter().fold(0.0, |m: f64, y| m.max(y.abs()));
    // `max` ignores NaN.
    let difference = x.iter().zip(&y).map(|(x, y)| (x - y).abs());
    let difference = difference.fold(0.0, |m: f64, x| if x <= m || m.is_nan() { m } else { x });
    if largest == 0.0 { difference } else { difference / largest }
}

/// Feeds a session.
///
/// # Errors
/// Those of the session.
pub fn feed(session: &mut Session, feeds: &[(&str, &Tensor)]) -> Result<()> {
    feeds.iter().try_for_each(|(name, x)| session.feed(name, *x))
}

/// Feeds and runs a session.
///
/// # Errors
/// Those of the session.
pub fn step(session: &mut Session, scope: &mut Scope, feeds: &[(&str, &Tensor)]) -> Result<()> {
    feed(session, feeds)?;
    session.run(scope)
}

/// The median time of a step, in milliseconds.
///
/// # Errors
/// Those of a step.
pub fn step_ms(seconds: f64, mut step: impl FnMut() -> Result<()>) -> Result<f64> {
    step()?;
    let (mut times, start) = (vec![], Instant::now());
    while times.len() < 3 || ms(start) < seconds * 1e3 {
        let begin = Instant::now();
        step()?;
        times.push(ms(begin));
    }
    Ok(median(times))
}
