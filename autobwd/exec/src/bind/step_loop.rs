//! The loop over the steps of a sub-block, for static and dynamic shapes.

use std::sync::Arc;

use crate::bind::{bound_block::ArenaRange, control_flow::BlockCallKernel};
use autobwd_core::{
    __private::{SavedStep, ValueCell, internals::*},
    Cx, Error, ErrorKind, Result, StepCount,
};

/// A sub-block whose steps [`StepLoop`] runs.
pub(crate) trait StepBlock {
    /// Whether the condition holds after `ran` steps.
    fn condition(&self, ran: usize) -> Result<bool>;

    /// Runs one more step on the carried values; `index` is its position in the sequences.
    fn step(&mut self, cx: &Cx, ran: usize, index: usize, state: StateHandling<'_>) -> Result<()>;
}

/// The handling of a step's state.
pub(crate) enum StateHandling<'a> {
    Discard,
    /// Save it for the backward pass in these step scopes.
    Save(&'a ValueCell),
    /// Run the gradient of a saved step.
    Load(&'a mut SavedStep),
}

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
    pub(crate) shared: bool,
    /// Number of steps per saved one.
    pub(crate) every: usize,
    /// Reruns the steps between saved ones.
    pub(crate) replay: Option<BoundReplay>,
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
                Some(scopes) if ran.is_multiple_of(self.every) => StateHandling::Save(scopes),
                _ => StateHandling::Discard,
            };
            block.step(cx, ran, self.index(ran), state)?;
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

    /// The index of a step's elements in the sequences.
    fn index(&self, number: usize) -> usize {
        match self.steps {
            StepCount::Each { reverse: true } | StepCount::Recorded { reverse: true } => {
                self.count.saturating_sub(number + 1)
            }
            _ => number,
        }
    }

    /// Runs over the saved steps in reverse, and consumes them unless another operator needs them, too.
    fn backward(&mut self, cx: &Cx, block: &mut impl StepBlock) -> Result<usize> {
        let no_scopes = || Error::internal("a backward pass without the saved step state");
        let scopes = self.scopes.clone().ok_or_else(no_scopes)?;
        let kept = self.shared.then(|| scopes.steps()?.try_clone()).transpose()?;
        // A failed run may have left some.
        self.replay.iter().for_each(|replay| replay.cell.clear());
        let mut ran = 0;
        while let Some((mut step, number)) = self.pop(cx, &scopes)? {
            let outcome = block.step(cx, ran, self.index(number), StateHandling::Load(&mut step));
            // Memory of dynamic shape cannot be reused by another step.
            if step.record.is_none() {
                self.replay.as_ref().map_or(&scopes, |replay| &replay.cell).steps()?.recycle(step);
            }
            outcome?;
            ran += 1;
        }
        if let Some(kept) = kept {
            *scopes.steps()? = kept;
        }
        Ok(ran)
    }

    /// Takes the last saved step, with the number of steps before it.
    fn pop(&mut self, cx: &Cx, scopes: &ValueCell) -> Result<Option<(SavedStep, usize)>> {
        let Some(replay) = &mut self.replay else { return Ok(scopes.steps()?.pop()) };
        if let Some(last) = replay.pop()? {
            return Ok(Some(last));
        }
        let Some((start, before)) = scopes.steps()?.pop() else { return Ok(None) };
        replay.before = before * replay.every;
        let end = std::mem::replace(&mut scopes.steps()?.count, replay.before);
        let outcome = replay.run(cx, &start, end);
        scopes.steps()?.recycle(start);
        outcome?;
        replay.pop()
    }
}

/// Steps of another operator that are rerun to restore their state.
pub(crate) struct BoundReplay {
    pub(crate) kernel: Box<BlockCallKernel>,
    pub(crate) cell: Arc<ValueCell>,
    /// The inputs of a saved step: location in the arena, and offset in saved state.
    pub(crate) starts: Vec<(ArenaRange, usize)>,
    pub(crate) every: usize,
    /// The number of steps before the rerun ones.
    pub(crate) before: usize,
}

impl BoundReplay {
    /// Reruns the steps up to `end` from the saved inputs of the first.
    fn run(&mut self, cx: &Cx, start: &SavedStep, end: usize) -> Result<()> {
        let BlockCallKernel { steps, block } = &mut *self.kernel;
        block.step.body.load(&self.starts, start);
        for number in self.before..end {
            if number > self.before {
                block.carry_over();
            }
            block.run_step(cx, steps.index(number), StateHandling::Save(&self.cell))?;
        }
        Ok(())
    }

    fn pop(&self) -> Result<Option<(SavedStep, usize)>> {
        Ok(self.cell.steps()?.pop().map(|(step, before)| (step, self.before + before)))
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
