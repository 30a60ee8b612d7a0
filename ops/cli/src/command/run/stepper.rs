//! A program that runs step after step, on the host or on a device.

use std::{fs::File, path::Path, sync::Arc, time::Instant};

use autobwd::{
    Error, ErrorKind, Meta, Program, Result, Scope, Session, Tensor,
    exec::{Monitor, RunTrace, record::RunRecord},
};
use autobwd_xla::{Backend, CompiledProgram, DeviceScope, pjrt::DeviceBuffer};

/// Runs one program with the same feeds again and again.
pub(super) enum Stepper<'a> {
    Host { session: Box<Session>, scope: Scope, feeds: &'a [(String, Tensor)], trace: Option<RunTrace> },
    Device(DeviceStepper),
}

pub(super) struct DeviceStepper {
    program: Arc<CompiledProgram>,
    scope: DeviceScope,
    feeds: Vec<(String, DeviceBuffer)>,
    fetches: Vec<String>,
    /// Those of the last step.
    fetched: Vec<Tensor>,
}

impl<'a> Stepper<'a> {
    /// Plans or compiles the program; on the host, steps may be traced.
    pub(super) fn new(
        backend: Backend,
        program: &Program,
        feeds: &'a [(String, Tensor)],
        fetches: &[&str],
        traces: bool,
    ) -> Result<Stepper<'a>> {
        let metas: Vec<(&str, Meta)> =
            feeds.iter().map(|(name, value)| (name.as_str(), value.meta())).collect();
        match backend {
            Backend::Host(executor, mut scope) => {
                let session = Box::new(executor.prepare(program, &mut scope, &metas, fetches)?);
                let plan = || executor.plan(program, &scope, &metas, fetches);
                let trace = traces.then(|| plan().map(|plan| RunTrace::new(&plan))).transpose()?;
                Ok(Stepper::Host { session, scope, feeds, trace })
            }
            Backend::Device(mut executor, scope) => {
                let upload =
                    |(name, value): &(String, Tensor)| Ok((name.clone(), scope.device().upload(value)?));
                Ok(Stepper::Device(DeviceStepper {
                    program: executor.prepare(program, &scope, &metas, fetches)?,
                    feeds: feeds.iter().map(upload).collect::<Result<_>>()?,
                    fetches: fetches.iter().map(ToString::to_string).collect(),
                    fetched: vec![],
                    scope,
                }))
            }
        }
    }

    /// Runs a step; returns its seconds, which include the download of fetches from a device.
    pub(super) fn step(&mut self) -> Result<f64> {
        match self {
            Stepper::Host { session, scope, feeds, trace } => {
                feeds.iter().try_for_each(|(name, value)| session.feed(name, value))?;
                let start = Instant::now();
                match trace {
                    None => session.run(scope)?,
                    Some(trace) => session.trace(scope, trace)?,
                }
                Ok(start.elapsed().as_secs_f64())
            }
            Stepper::Device(stepper) => stepper.step(),
        }
    }

    /// Appends a step to a log.
    pub(super) fn record(&self, monitor: &mut Monitor<File>, step: u64) -> Result<()> {
        match self {
            Stepper::Host { session, .. } => monitor.record(step, session),
            Stepper::Device(stepper) => {
                let fetched = monitor.fetches().into_iter().map(|name| stepper.fetched(name).cloned());
                let fetched = fetched.collect::<Result<Vec<_>>>()?;
                monitor.record_fetched(step, &fetched)
            }
        }
    }

    /// Appends a step to the record of a run; runs on a device have none.
    pub(super) fn record_inputs(&self, record: &mut RunRecord) -> Result<()> {
        let Stepper::Host { scope, feeds, .. } = self else { return Ok(()) };
        let feeds: Vec<_> = feeds.iter().map(|(name, value)| (name.as_str(), value)).collect();
        record.step(&feeds, scope)
    }

    /// Ends the record of a run.
    pub(super) fn finish_record(&self, record: RunRecord) -> Result<()> {
        match self {
            Stepper::Host { scope, .. } => record.finish(scope),
            Stepper::Device(_) => Ok(()),
        }
    }

    /// Writes the trace of the steps.
    pub(super) fn save_trace(&self, path: &Path) -> Result<()> {
        match self {
            Stepper::Host { trace: Some(trace), .. } => trace.save(path),
            _ => Ok(()),
        }
    }

    /// The value of a fetch after the last step.
    pub(super) fn fetch(&self, name: &str) -> Result<Tensor> {
        match self {
            Stepper::Host { session, .. } => session.fetch(name),
            Stepper::Device(stepper) => stepper.fetched(name).cloned(),
        }
    }

    /// The value of a fetch of one element.
    pub(super) fn item(&self, name: &str) -> Result<f64> {
        match self {
            Stepper::Host { session, .. } => session.item(name),
            Stepper::Device(stepper) => stepper.fetched(name)?.item(),
        }
    }

    /// Tensor memory of a step on the host.
    pub(super) fn peak_bytes(&self) -> Option<usize> {
        match self {
            Stepper::Host { session, .. } => Some(session.peak_bytes()),
            Stepper::Device(_) => None,
        }
    }

    /// The values that the program keeps.
    pub(super) fn values(self) -> Result<Scope> {
        match self {
            Stepper::Host { scope, .. } => Ok(scope),
            Stepper::Device(stepper) => {
                let mut values = Scope::new();
                stepper.scope.download(&mut values)?;
                Ok(values)
            }
        }
    }
}

impl DeviceStepper {
    fn step(&mut self) -> Result<f64> {
        let feeds: Vec<_> = self.feeds.iter().map(|(name, value)| (name.as_str(), value)).collect();
        let fetches: Vec<&str> = self.fetches.iter().map(String::as_str).collect();
        let start = Instant::now();
        let fetched = self.program.run_on_device(&mut self.scope, &feeds, &fetches)?;
        self.fetched = fetched.iter().map(DeviceBuffer::download).collect::<Result<_>>()?;
        Ok(start.elapsed().as_secs_f64())
    }

    fn fetched(&self, name: &str) -> Result<&Tensor> {
        let position = self.fetches.iter().position(|fetch| fetch == name);
        let value = position.and_then(|i| self.fetched.get(i));
        value.ok_or_else(|| Error::new(ErrorKind::Fetch, format!("`{name}` is not fetched")))
    }
}
