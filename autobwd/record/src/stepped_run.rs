//! A recorded run whose steps are run again, one by one.

use std::sync::Arc;

use autobwd_core::{Result, Tensor};
use autobwd_exec::{Executor, Observer, Scope};

use crate::{
    line::StepInputs,
    recorded_run::RecordedRun,
    replay::{Failure, Replay},
    verification::Refusal,
};

/// A replay that stops after each step, and can run its last step again.
pub(crate) struct SteppedRun<'a> {
    pub(crate) run: &'a RecordedRun,
    replay: Replay<'a, 'static>,
    scope: Scope,
    /// The steps that have run.
    step: u64,
    /// The state before the last step.
    before: Vec<(String, Tensor)>,
    /// The last step whose recorded hash is the hash of the replayed state.
    confirmed: u64,
    /// The first recorded hash that is not the hash of the replayed state.
    pub(crate) refusal: Option<Refusal>,
}

impl<'a> SteppedRun<'a> {
    /// Starts at the last checkpoint that is not after a step; without one, after the startup programs.
    ///
    /// # Errors
    /// No checkpoint nor startup program; a checkpoint that is not the recorded one; the errors of the file system.
    pub(crate) fn start(
        run: &'a RecordedRun,
        checkpoints: &'a [u64],
        latest: u64,
        executor: &mut Executor,
    ) -> Result<SteppedRun<'a>> {
        let replay = run.replay(checkpoints, None)?;
        let step = checkpoints.iter().rfind(|step| **step <= latest).copied();
        let scope = match step {
            Some(step) => replay.load(step),
            None => replay.start(executor, 0),
        };
        let scope = scope.map_err(|failure| failure.into_error(&run.folder))?;
        let step = step.unwrap_or(0);
        Ok(SteppedRun { run, replay, scope, step, before: vec![], confirmed: step, refusal: None })
    }

    /// The number of the last step that has run.
    pub(crate) fn step(&self) -> u64 {
        self.step
    }

    /// The values after the last step.
    pub(crate) fn scope(&self) -> &Scope {
        &self.scope
    }

    /// The names and values of the state after the last step.
    pub(crate) fn state(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.replay.names.state(&self.scope)
    }

    /// The inputs of the last step; `None` before the first one.
    pub(crate) fn inputs(&self) -> Option<&'a StepInputs> {
        let run = self.run;
        run.history.steps.get((self.step as usize).checked_sub(1)?)
    }

    /// Runs the next step.
    ///
    /// # Errors
    /// A step that cannot be run; there is no next step.
    pub(crate) fn advance(&mut self, executor: &mut Executor) -> Result<()> {
        let copy = |(name, value): (&str, &Tensor)| (name.to_string(), value.clone());
        self.before = self.replay.names.state(&self.scope).map(copy).collect();
        self.step += 1;
        self.run_last(executor)?;
        let Some(known) = self.run.history.states.get(&self.step) else { return Ok(()) };
        match self.replay.compare(known, self.confirmed, &self.scope, "after the step") {
            Ok(()) if self.refusal.is_none() => self.confirmed = self.step,
            Err(Failure::Refused(refusal)) => _ = self.refusal.get_or_insert(refusal),
            Err(Failure::Error(e)) => return Err(e),
            Ok(()) => {}
        }
        Ok(())
    }

    /// Runs the last step again, with an observer.
    ///
    /// # Errors
    /// The errors of the observer; a step that cannot be run.
    pub(crate) fn observe(&mut self, executor: &Executor, observer: Arc<dyn Observer>) -> Result<()> {
        self.before.iter().for_each(|(name, value)| self.scope.set(name, value.clone()));
        self.run_last(&mut executor.observed(observer))
    }

    fn run_last(&mut self, executor: &mut Executor) -> Result<()> {
        let Some(inputs) = self.inputs() else { return Ok(()) };
        let outcome = self.replay.step(executor, inputs, self.confirmed, &mut self.scope);
        outcome.map_err(|failure| failure.into_error(&self.run.folder))
    }
}
