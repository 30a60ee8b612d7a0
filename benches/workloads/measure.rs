//! A workload on autobwd's executor.

use std::{collections::BTreeMap, time::Instant};

use autobwd::{Executor, Result};
use autobwd_benches::{StepTimes, ms, quantile, workload::Workload};

pub(crate) struct Measured {
    workload: Workload,
    threads: usize,
    build_ms: f64,
    steps: StepTimes,
    peak_bytes: usize,
}

pub(crate) fn measure(workload: Workload, threads: Option<usize>, seconds: f64) -> Result<Measured> {
    let start = Instant::now();
    let mut model = workload.model()?;
    let executor = threads.map_or_else(Executor::new, Executor::with_threads);
    let mut session = {
        let program = model.net.program()?;
        executor.prepare(&program, &mut model.scope, &[], &[&model.loss])?
    };
    let build_ms = ms(start);
    let steps = StepTimes::measure(seconds, || {
        session.run(&mut model.scope)?;
        session.item(&model.loss)
    })?;
    let (threads, peak_bytes) = (executor.threads(), session.peak_bytes());
    Ok(Measured { workload, threads, build_ms, steps, peak_bytes })
}

/// Runs `steps` steps.
pub(crate) fn steps(workload: Workload, threads: Option<usize>, steps: usize) -> Result<()> {
    let mut model = workload.model()?;
    let executor = threads.map_or_else(Executor::new, Executor::with_threads);
    let program = model.net.program()?;
    let mut session = executor.prepare(&program, &mut model.scope, &[], &[&model.loss])?;
    (0..steps).try_for_each(|_| session.run(&mut model.scope))
}

/// Prints for each operator type, or fused kernel: instructions, microseconds a step and their share. Instructions are
/// timed one by one, over all steps.
pub(crate) fn profile(workload: Workload, threads: Option<usize>, seconds: f64) -> Result<()> {
    let mut model = workload.model()?;
    let executor = threads.map_or_else(Executor::new, Executor::with_threads);
    let threads = executor.threads();
    let program = model.net.program()?;
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
        let mut line = self.steps.to_json("autobwd", self.workload.name(), self.threads, self.build_ms);
        line["peak_bytes"] = self.peak_bytes.into();
        line
    }

    pub(crate) fn losses_are_expected(&self) -> bool {
        self.workload.expects(self.steps.loss1, self.steps.loss10)
    }
}
