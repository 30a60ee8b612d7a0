//! A workload on autobwd's executor.

use std::time::Instant;

use autobwd::{Executor, Result};
use autobwd_benches::{StepTimes, ms, print_profile, workload::Workload};

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

/// Prints the time of each operator type in a step.
pub(crate) fn profile(workload: Workload, threads: Option<usize>, seconds: f64) -> Result<()> {
    let mut model = workload.model()?;
    let executor = threads.map_or_else(Executor::new, Executor::with_threads);
    let title = format!("{}, {} threads", workload.name(), executor.threads());
    let program = model.net.program()?;
    let mut session = executor.prepare(&program, &mut model.scope, &[], &[&model.loss])?;
    print_profile(&title, seconds, &mut session, &mut model.scope, |_| Ok(()))
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
