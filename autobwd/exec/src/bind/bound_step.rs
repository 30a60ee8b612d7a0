//! A sub-block bound to memory, with its inputs and the locations of copied values.

use std::sync::Arc;

use crate::bind::{
    BindOptions, CapturedValue,
    bound_block::{ArenaRange, BoundBlock},
};
use autobwd_core::{
    __private::{SavedStep, ValueCell, internals::*},
    BlockId, Bool, Buf, Cx, Error, Program, Result,
};
use autobwd_plan::{BlockInputs, StepEnds, StepPlan, ValueId};

/// The bound inputs of a block, see [`BlockInputs`].
pub(crate) struct BoundInputs {
    bufs: Vec<Buf<'static>>,
    condition: Option<usize>,
    firsts: Vec<Option<usize>>,
    sequences: Vec<usize>,
    scopes: Option<usize>,
}

impl BoundInputs {
    pub(crate) fn new(entering: &BlockInputs, inputs: Vec<(ValueId, Buf<'static>)>) -> Result<BoundInputs> {
        let (ids, bufs): (Vec<_>, Vec<_>) = inputs.into_iter().unzip();
        let at = |id: ValueId| {
            ids.iter().position(|v| *v == id).ok_or_else(|| Error::internal("an input that is not bound"))
        };
        let first = |id: Option<ValueId>| id.map(at).transpose();
        Ok(BoundInputs {
            condition: first(entering.condition)?,
            firsts: entering.carried.iter().map(|each| first(each.first)).collect::<Result<_>>()?,
            sequences: entering.slices.iter().map(|(id, ..)| at(*id)).collect::<Result<_>>()?,
            scopes: first(entering.scopes)?,
            bufs,
        })
    }

    /// The condition of the first step.
    pub(crate) fn condition(&self) -> Result<bool> {
        let at = self.condition.ok_or_else(|| Error::internal("a loop without condition"))?;
        Ok(self.bufs[at].slice::<Bool>()?[0].get())
    }

    /// By carried value: its initial value; zeros if there is none.
    pub(crate) fn initial_values(&self) -> impl Iterator<Item = Option<&Buf<'static>>> {
        self.firsts.iter().map(|at| Some(&self.bufs[(*at)?]))
    }

    pub(crate) fn sequences(&self) -> impl Iterator<Item = &Buf<'static>> {
        self.sequences.iter().map(|at| &self.bufs[*at])
    }

    /// The saved step state of another operator.
    pub(crate) fn scopes(&self) -> Result<Option<Arc<ValueCell>>> {
        self.scopes.map(|at| self.bufs[at].cell().cloned()).transpose()
    }
}

/// A bound block that runs one step, see [`StepPlan`].
pub(crate) struct BoundStep {
    pub(crate) body: BoundBlock,
    pub(crate) starts: Vec<Option<ArenaRange>>,
    slices: Vec<ArenaRange>,
    stored: Vec<(ArenaRange, usize)>,
    pub(crate) nested: Vec<Arc<ValueCell>>,
    pub(crate) ends: StepEnds,
}

impl BoundStep {
    pub(crate) fn new(
        program: &Program,
        block: BlockId,
        step: &StepPlan,
        outer: &[CapturedValue],
        options: BindOptions<'_>,
    ) -> Result<BoundStep> {
        let StepPlan { plan, inputs, ends } = step;
        let body = BoundBlock::of_block(program, block, plan, outer, options)?;
        let span = |id: ValueId| body.span(plan, id);
        let starts = inputs.starts.iter().map(|id| id.map(span).transpose()).collect::<Result<_>>()?;
        let slices = inputs.slices.iter().map(|id| span(*id)).collect::<Result<_>>()?;
        let stored = inputs.stored.iter().map(|(id, at)| Ok((span(*id)?, *at))).collect::<Result<_>>()?;
        let unused = || Arc::new(ValueCell::Steps(Default::default()));
        let nested =
            inputs.nested.iter().map(|var| body.cell(*var).cloned().unwrap_or_else(unused)).collect();
        Ok(BoundStep { body, starts, slices, stored, nested, ends: ends.clone() })
    }

    /// Copies carried values into the step's inputs.
    pub(crate) fn feed<'b>(&mut self, values: impl Iterator<Item = Option<&'b [u8]>>) {
        for (start, value) in self.starts.iter().zip(values) {
            if let (Some(ArenaRange { at, bytes }), Some(value)) = (*start, value) {
                self.body.arena.slice_mut::<u8>(at, bytes).copy_from_slice(value);
            }
        }
    }

    /// Copies the step's elements of the sequences.
    pub(crate) fn slice(&mut self, index: usize, inputs: &BoundInputs) -> Result<()> {
        for (ArenaRange { at, .. }, sequence) in self.slices.iter().zip(inputs.sequences()) {
            sequence.copy_part(index, &mut self.body.arena, *at)?;
        }
        Ok(())
    }

    /// Swaps step scopes of inner operators between the saved state and their cells.
    fn exchange(&self, step: &mut SavedStep) -> Result<()> {
        for (cell, steps) in self.nested.iter().zip(&mut step.nested) {
            std::mem::swap(&mut *cell.steps()?, steps);
        }
        Ok(())
    }

    /// Runs the block on saved step state.
    pub(crate) fn run_on(&mut self, cx: &Cx, step: &mut SavedStep) -> Result<()> {
        self.body.load(&self.stored, step);
        self.run_with(cx, step)
    }

    /// Runs the block with the step scopes of inner operators.
    pub(crate) fn run_with(&mut self, cx: &Cx, step: &mut SavedStep) -> Result<()> {
        self.exchange(step)?;
        let outcome = self.body.run(cx);
        self.exchange(step)?;
        outcome
    }
}
