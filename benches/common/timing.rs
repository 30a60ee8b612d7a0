//! Timing and statistics, shared with the Rust peers, which include this file.

use std::{
    fs,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

/// Milliseconds since an instant.
pub fn ms(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

/// The quantile below which that share of the values lies.
///
/// # Panics
/// There are no values.
pub fn quantile(values: &mut [f64], share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values[(values.len() as f64 * share) as usize]
}

/// The median.
///
/// # Panics
/// There are no values.
pub fn median(mut values: Vec<f64>) -> f64 {
    quantile(&mut values, 0.5)
}

/// Resident bytes of this process; 0 if the system does not report them.
pub fn resident_bytes() -> usize {
    status_bytes("VmRSS:")
}

/// Peak resident bytes of this process; 0 if the system does not report them.
pub fn peak_resident_bytes() -> usize {
    status_bytes("VmHWM:")
}

/// Resets [`peak_resident_bytes`]; `false` if the system does not support it.
pub fn forget_peak() -> bool {
    fs::write("/proc/self/clear_refs", "5").is_ok()
}

fn status_bytes(key: &str) -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with(key));
    line.and_then(|line| line.split_whitespace().nth(1)?.parse::<usize>().ok()).map_or(0, |kb| kb * 1024)
}

/// Rounds to a number of decimal places.
pub fn round(x: f64, digits: i32) -> f64 {
    let scale = 10_f64.powi(digits);
    (x * scale).round() / scale
}

/// Training steps: their times, and the losses of the first and the tenth.
pub struct StepTimes {
    /// Loss of the first step.
    pub loss1: f64,
    /// Loss of the tenth step.
    pub loss10: f64,
    ms: Vec<f64>,
}

impl StepTimes {
    /// Runs ten steps whose losses are kept, a warm-up, then as many steps as fit into the time; `step` returns the
    /// loss.
    ///
    /// # Errors
    /// Those of a step.
    pub fn measure<E>(seconds: f64, mut step: impl FnMut() -> Result<f64, E>) -> Result<Self, E> {
        let loss1 = step()?;
        let mut loss10 = loss1;
        for _ in 1..10 {
            loss10 = step()?;
        }
        let warm_up = Instant::now();
        while ms(warm_up) < 300.0 {
            step()?;
        }
        let (mut times, start) = (vec![], Instant::now());
        while (ms(start) < seconds * 1e3 && times.len() < 50_000) || times.len() < 10 {
            let one = Instant::now();
            std::hint::black_box(step()?);
            times.push(ms(one));
        }
        Ok(StepTimes { loss1, loss10, ms: times })
    }

    /// The JSON line of a run.
    pub fn to_json(&self, lib: &str, workload: &str, threads: usize, build_ms: f64) -> Value {
        let mut times = self.ms.clone();
        let mut at = |share: f64| round(quantile(&mut times, share), 5);
        json!({
            "lib": lib,
            "workload": workload,
            "threads": threads,
            "median_ms": at(0.5),
            "min_ms": at(0.0),
            "p90_ms": at(0.9),
            "reps": self.ms.len(),
            "peak_rss_mb": round(peak_resident_bytes() as f64 / 1024.0 / 1024.0, 1),
            "build_ms": round(build_ms, 3),
            "loss1": round(self.loss1, 8),
            "loss10": round(self.loss10, 8),
        })
    }
}

/// Times rows of `length` equal operators, each `rounds` times, and prints a line for each operator and one with the
/// medians over the operators; `row` returns the durations of recording and of the backward pass. Returns the median
/// nanoseconds of an operator.
///
/// # Errors
/// Those of a row.
pub fn rows<E>(
    lib: &str,
    length: usize,
    rounds: usize,
    operators: impl IntoIterator<Item = (&'static str, impl Fn(usize) -> Result<[Duration; 2], E>)>,
) -> Result<f64, E> {
    let (length, mut all) = (length.max(1), [vec![], vec![], vec![]]);
    let print = |name: &str, [forward, backward, both]: [f64; 3]| {
        let of = |ns| round(ns, 1);
        println!(
            "{}",
            json!({
                "lib": lib,
                "operator": name,
                "forward_ns": of(forward),
                "backward_ns": of(backward),
                "ns": of(both),
            })
        );
    };
    for (name, row) in operators {
        let (mut forward, mut backward) = (vec![], vec![]);
        for _ in 0..rounds.max(1) {
            let [there, back] = row(length)?;
            forward.push(there.as_secs_f64());
            backward.push(back.as_secs_f64());
        }
        let [there, back] = [forward, backward].map(|seconds| median(seconds) * 1e9 / length as f64);
        let figures = [there, back, there + back];
        all.iter_mut().zip(figures).for_each(|(all, ns)| all.push(ns));
        print(name, figures);
    }
    let medians = all.map(median);
    print("median", medians);
    Ok(medians[2])
}
