//! The loop over the steps of a sub-block, for blocks planned ahead and for blocks planned step by step.

use std::sync::Arc;

use crate::bind::{body::Span, control::CallFrame};
use autobwd_core::{
    Cx, Error, ErrorKind, Result, StepCount,
    tensor::{Cell, Step},
};

/// A sub-block of which [`StepLoop`] runs the steps.
pub(crate) trait StepBlock {
    /// Whether the condition holds after so many steps.
    fn condition(&self, ran: usize) -> Result<bool>;

    /// Runs one more step, on what the one before has handed on; `index` is that of its parts in the sequences.
    fn step(&mut self, cx: &Cx, ran: usize, index: usize, state: StepState<'_>) -> Result<()>;
}

/// What becomes of the values of a step.
pub(crate) enum StepState<'a> {
    Discard,
    /// The backward part needs them: they are added to these step scopes.
    Save(&'a Cell),
    /// The step goes back through one that was saved.
    Load(&'a mut Step),
}

/// How often a sub-block runs, and where its steps leave what the backward part reads.
pub(crate) struct StepLoop {
    pub(crate) steps: StepCount,
    /// Length of the sequences.
    pub(crate) count: usize,
    /// How often a loop may run.
    pub(crate) limit: u64,
    /// What its steps fill or consume.
    pub(crate) scopes: Option<Arc<Cell>>,
    /// Whether a later operator consumes the same.
    pub(crate) shared: bool,
    /// One step in how many is saved.
    pub(crate) every: usize,
    /// Runs steps between saved ones again.
    pub(crate) replay: Option<Replay>,
}

impl StepLoop {
    /// Runs all steps; returns how many there were.
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
                Some(scopes) if ran.is_multiple_of(self.every) => StepState::Save(scopes),
                _ => StepState::Discard,
            };
            block.step(cx, ran, self.index(ran), state)?;
            ran += 1;
        }
        if let Some(scopes) = &self.scopes {
            scopes.steps()?.count = ran;
        }
        Ok(ran)
    }

    /// Whether there is another step after so many.
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

    /// Where the parts of a step are in the sequences.
    fn index(&self, number: usize) -> usize {
        match self.steps {
            StepCount::Each { reverse: true } | StepCount::Recorded { reverse: true } => {
                self.count.saturating_sub(number + 1)
            }
            _ => number,
        }
    }

    /// Goes back through the saved steps, which are consumed, unless another operator needs them, too.
    fn backward(&mut self, cx: &Cx, block: &mut impl StepBlock) -> Result<usize> {
        let no_scopes = || Error::internal("a backward part without what the steps have left");
        let scopes = self.scopes.clone().ok_or_else(no_scopes)?;
        let kept = self.shared.then(|| scopes.steps()?.try_clone()).transpose()?;
        // A run that has failed may have left some.
        self.replay.iter().for_each(|replay| replay.cell.clear());
        let mut ran = 0;
        while let Some((mut step, number)) = self.pop(cx, &scopes)? {
            let outcome = block.step(cx, ran, self.index(number), StepState::Load(&mut step));
            // Memory that differs from step to step serves no other.
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

    /// What the last step has left that is not consumed, and how many steps there were before.
    fn pop(&mut self, cx: &Cx, scopes: &Cell) -> Result<Option<(Step, usize)>> {
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

/// Steps of another operator that are run again, for what they leave.
pub(crate) struct Replay {
    pub(crate) frame: Box<CallFrame>,
    pub(crate) cell: Arc<Cell>,
    /// What one step in so many has found: where in the arena, and where in what it has left.
    pub(crate) starts: Vec<(Span, usize)>,
    pub(crate) every: usize,
    /// How many steps there were before those that have been run again.
    pub(crate) before: usize,
}

impl Replay {
    /// Runs the steps up to that number, from what the first of them has found.
    fn run(&mut self, cx: &Cx, start: &Step, end: usize) -> Result<()> {
        let CallFrame { steps, block } = &mut *self.frame;
        block.step.body.load(&self.starts, start);
        for number in self.before..end {
            if number > self.before {
                block.hand_on();
            }
            block.run_step(cx, steps.index(number), StepState::Save(&self.cell))?;
        }
        Ok(())
    }

    fn pop(&self) -> Result<Option<(Step, usize)>> {
        Ok(self.cell.steps()?.pop().map(|(step, before)| (step, self.before + before)))
    }
}

/// A loop that has reached its limit.
fn endless(steps: usize) -> Error {
    let text =
        format!("the loop has not ended after {steps} steps, its limit; `Executor::loop_limit` sets another");
    Error::new(ErrorKind::Endless, text)
}
