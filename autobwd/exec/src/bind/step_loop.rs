//! The loop over the steps of a sub-block, for static and dynamic shapes.

use std::sync::Arc;

use crate::bind::{
    bound_block::SavedRange,
    bound_step::{StateHandling, StepBlock},
    static_block::StaticBlock,
};
use autobwd_core::{
    __private::{SavedStep, ValueCell, internals::*},
    Cx, Error, ErrorKind, Result, StepCount,
};

/// The number of steps of a sub-block, and the step scopes for the backward pass.
pub(crate) struct StepLoop {
    pub(crate) steps: StepCount,
    /// Length of the sequences.
    pub(crate) count: usize,
    /// Maximum number of steps.
    pub(crate) limit: u64,
    /// The step scopes that its steps fill or consume.
    pub(crate) scopes: Option<Arc<ValueCell>>,
    /// Whether a later operator consumes the same step scopes.
    pub(crate) shares_steps: bool,
    /// Number of steps per saved step.
    pub(crate) save_interval: usize,
    /// Reruns the steps between saved ones.
    pub(crate) replay: Option<Replay>,
}

impl StepLoop {
    /// Runs all steps; returns their number.
    pub(crate) fn run(&mut self, cx: &Cx, block: &mut impl StepBlock) -> Result<usize> {
        match self.steps {
            StepCount::Recorded { .. } => self.backward(cx, block),
            _ => self.forward(cx, block),
        }
    }

    fn forward(&self, cx: &Cx, block: &mut impl StepBlock) -> Result<usize> {
        let mut ran = 0;
        while self.continues(block, ran)? {
            let state = match &self.scopes {
                Some(scopes) if ran.is_multiple_of(self.save_interval) => StateHandling::Save(scopes),
                _ => StateHandling::Discard,
            };
            block.step(cx, ran, sequence_index(self.steps, self.count, ran), state)?;
            ran += 1;
        }
        if let Some(scopes) = &self.scopes {
            scopes.steps()?.count = ran;
        }
        Ok(ran)
    }

    /// Whether there is another step after `ran` steps.
    fn continues(&self, block: &impl StepBlock, ran: usize) -> Result<bool> {
        match self.steps {
            StepCount::If(_) => Ok(ran == 0 && block.condition(ran)?),
            StepCount::While(_) => match block.condition(ran)? {
                true if ran as u64 >= self.limit => Err(endless(ran)),
                holds => Ok(holds),
            },
            StepCount::Times(n) if n as u64 > self.limit => Err(endless(self.limit as usize)),
            StepCount::Times(n) => Ok(ran < n),
            StepCount::Each { .. } | StepCount::Recorded { .. } => Ok(ran < self.count),
        }
    }

    /// Runs over the saved steps in reverse, and consumes them unless another operator needs them.
    fn backward(&mut self, cx: &Cx, block: &mut impl StepBlock) -> Result<usize> {
        let no_scopes = || Error::internal("a backward pass without the saved step state");
        let scopes = self.scopes.clone().ok_or_else(no_scopes)?;
        let copy = self.shares_steps.then(|| scopes.steps()?.try_clone()).transpose()?;
        // Those of a failed run.
        self.replay.iter().for_each(|replay| replay.cell.clear());
        let mut ran = 0;
        while let Some((mut step, number)) = self.pop(cx, &scopes)? {
            let index = sequence_index(self.steps, self.count, number);
            let outcome = block.step(cx, ran, index, StateHandling::Load(&mut step));
            // Memory of dynamic shape cannot be reused by another step.
            if step.layout_index.is_none() {
                self.replay.as_ref().map_or(&scopes, |replay| &replay.cell).steps()?.recycle(step);
            }
            outcome?;
            ran += 1;
        }
        if let Some(copy) = copy {
            *scopes.steps()? = copy;
        }
        Ok(ran)
    }

    /// Takes the last saved step, with the number of steps before it.
    fn pop(&mut self, cx: &Cx, scopes: &ValueCell) -> Result<Option<(SavedStep, usize)>> {
        let Some(replay) = &mut self.replay else { return Ok(scopes.steps()?.pop()) };
        if let Some(last) = replay.pop()? {
            return Ok(Some(last));
        }
        let Some((saved, number)) = scopes.steps()?.pop() else { return Ok(None) };
        replay.steps_before = number * replay.save_interval;
        let end = std::mem::replace(&mut scopes.steps()?.count, replay.steps_before);
        let outcome = replay.run(cx, &saved, end);
        scopes.steps()?.recycle(saved);
        outcome?;
        replay.pop()
    }
}

/// Steps of another operator that are rerun to restore their state.
pub(crate) struct Replay {
    pub(crate) block: Box<StaticBlock>,
    pub(crate) steps: StepCount,
    /// Length of the sequences.
    pub(crate) count: usize,
    /// The state of the rerun steps.
    pub(crate) cell: Arc<ValueCell>,
    /// The inputs of a saved step.
    pub(crate) carried: Vec<SavedRange>,
    pub(crate) save_interval: usize,
    /// The number of steps before the rerun ones.
    pub(crate) steps_before: usize,
}

impl Replay {
    /// Reruns the steps up to `end` from the saved inputs of the first.
    fn run(&mut self, cx: &Cx, first: &SavedStep, end: usize) -> Result<()> {
        self.block.step.block.load(&self.carried, first);
        for number in self.steps_before..end {
            if number > self.steps_before {
                self.block.carry_over();
            }
            let index = sequence_index(self.steps, self.count, number);
            self.block.run_step(cx, index, StateHandling::Save(&self.cell))?;
        }
        Ok(())
    }

    fn pop(&self) -> Result<Option<(SavedStep, usize)>> {
        Ok(self.cell.steps()?.pop().map(|(step, number)| (step, self.steps_before + number)))
    }
}

/// The index of a step's elements in the sequences.
fn sequence_index(steps: StepCount, count: usize, number: usize) -> usize {
    match steps {
        StepCount::Each { reverse: true } | StepCount::Recorded { reverse: true } => {
            count.saturating_sub(number + 1)
        }
        _ => number,
    }
}

/// The error of a loop that has reached its limit.
fn endless(steps: usize) -> Error {
    let text = format!(
        "the loop has not ended after {steps} steps, its limit; change its condition, or raise the limit with \
         `Executor::loop_limit`"
    );
    Error::new(ErrorKind::Endless, text)
}
