//! Timing: ten steps whose losses are kept, a warm-up, then as many steps as fit into the time.

use std::{collections::BTreeMap, time::Instant};

use autobwd::{Executor, Result};
use autobwd_benches::{ms, peak_resident_bytes, quantile, round, workload::Workload};
use serde_json::json;

pub(crate) struct Measured {
    workload: Workload,
    threads: usize,
    build_ms: f64,
    step_ms: Vec<f64>,
    loss1: f64,
    loss10: f64,
    peak_bytes: usize,
}

pub(crate) fn measure(workload: Workload, threads: Option<usize>, seconds: f64) -> Result<Measured> {
    let start = Instant::now();
    let mut model = workload.model()?;
    let executor = threads.map_or_else(Executor::new, Executor::with_threads);
    let mut session = {
        let program = model.net.program();
        executor.prepare(&program, &mut model.scope, &[], &[&model.loss])?
    };
    let build_ms = ms(start);
    let mut step = || -> Result<f64> {
        session.run(&mut model.scope)?;
        session.item(&model.loss)
    };
    let loss1 = step()?;
    let mut loss10 = loss1;
    for _ in 1..10 {
        loss10 = step()?;
    }
    let warm_up = Instant::now();
    while ms(warm_up) < 300.0 {
        step()?;
    }
    let (mut step_ms, start) = (vec![], Instant::now());
    while (ms(start) < seconds * 1e3 && step_ms.len() < 50_000) || step_ms.len() < 10 {
        let one = Instant::now();
        std::hint::black_box(step()?);
        step_ms.push(ms(one));
    }
    let (threads, peak_bytes) = (executor.threads(), session.peak_bytes());
    Ok(Measured { workload, threads, build_ms, step_ms, loss1, loss10, peak_bytes })
}

/// Runs so many steps.
pub(crate) fn steps(workload: Workload, threads: Option<usize>, steps: usize) -> Result<()> {
    let mut model = workload.model()?;
    let executor = threads.map_or_else(Executor::new, Executor::with_threads);
    let program = model.net.program();
    let mut session = executor.prepare(&program, &mut model.scope, &[], &[&model.loss])?;
    (0..steps).try_for_each(|_| session.run(&mut model.scope))
}

/// Prints by type of operator, or of the operators of a region: frames, microseconds a step and their share. Frames are
/// timed one by one, over all steps.
pub(crate) fn profile(workload: Workload, threads: Option<usize>, seconds: f64) -> Result<()> {
    let mut model = workload.model()?;
    let executor = threads.map_or_else(Executor::new, Executor::with_threads);
    let threads = executor.threads();
    let program = model.net.program();
    let mut session = executor.prepare(&program, &mut model.scope, &[], &[&model.loss])?;
    let mut frames: Vec<(String, Vec<f64>)> = vec![];
    let start = Instant::now();
    while ms(start) < seconds * 1e3 {
        let step = session.profile(&mut model.scope)?;
        frames.resize_with(step.len(), Default::default);
        for ((label, times), (ty, time)) in frames.iter_mut().zip(step) {
            ty.clone_into(label);
            times.push(time.as_secs_f64() * 1e6);
        }
    }
    let mut types: BTreeMap<String, (usize, f64, f64)> = BTreeMap::new();
    for (label, mut times) in frames {
        let (count, least, middle) = types.entry(label).or_default();
        *count += 1;
        *least += quantile(&mut times, 0.0);
        *middle += quantile(&mut times, 0.5);
    }
    let total = |of: fn(&(usize, f64, f64)) -> f64| types.values().map(of).sum::<f64>();
    let (least, middle) = (total(|time| time.1), total(|time| time.2));
    let mut types: Vec<_> = types.into_iter().collect();
    types.sort_by(|a, b| b.1.1.total_cmp(&a.1.1));
    println!("frames  least µs  share  median µs  operators of {}, {threads} threads", workload.name());
    for (label, (count, of_least, of_middle)) in types {
        println!("{count:6} {of_least:9.1} {:5.1}% {of_middle:10.1}  {label}", of_least / least * 100.0);
    }
    println!("       {least:9.1}        {middle:10.1}");
    Ok(())
}

impl Measured {
    pub(crate) fn to_json(&self) -> serde_json::Value {
        let mut steps = self.step_ms.clone();
        let mut at = |share: f64| round(quantile(&mut steps, share), 5);
        json!({
            "lib": "autobwd",
            "workload": self.workload.name(),
            "threads": self.threads,
            "median_ms": at(0.5),
            "min_ms": at(0.0),
            "p90_ms": at(0.9),
            "reps": self.step_ms.len(),
            "peak_rss_mb": round(peak_resident_bytes() as f64 / 1024.0 / 1024.0, 1),
            "build_ms": round(self.build_ms, 3),
            "loss1": round(self.loss1, 6),
            "loss10": round(self.loss10, 6),
            "peak_bytes": self.peak_bytes,
        })
    }

    pub(crate) fn losses_are_expected(&self) -> bool {
        let (loss1, loss10) = self.workload.expected();
        let near = |a: f64, b: f64| (a - b).abs() <= self.workload.tolerance() * b.abs();
        near(self.loss1, loss1) && near(self.loss10, loss10)
    }
}
