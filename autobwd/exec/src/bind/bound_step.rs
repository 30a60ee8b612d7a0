//! A sub-block bound to memory, with its inputs and the locations of copied values.

use std::sync::Arc;

use crate::bind::bound_block::{ArenaRange, BoundBlock, SavedRange, arena_range};
use autobwd_core::{
    __private::{SavedStep, ValueCell, internals::*},
    Bool, Buf, Cx, Error, Result,
};
use autobwd_plan::{BlockInputs, StepEnds, StepPlan, ValueId};

/// A sub-block whose steps a loop runs.
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

/// The bound inputs of a block, see [`BlockInputs`].
pub(crate) struct BoundInputs {
    bufs: Vec<Buf<'static>>,
    condition: Option<usize>,
    /// By carried value: its initial value.
    initial: Vec<Option<usize>>,
    sequences: Vec<usize>,
    scopes: Option<usize>,
}

impl BoundInputs {
    pub(crate) fn new(inputs: &BlockInputs, bufs: Vec<(ValueId, Buf<'static>)>) -> Result<BoundInputs> {
        let (ids, bufs): (Vec<_>, Vec<_>) = bufs.into_iter().unzip();
        let position = |id: ValueId| {
            ids.iter().position(|v| *v == id).ok_or_else(|| Error::internal("an input that is not bound"))
        };
        let optional = |id: Option<ValueId>| id.map(position).transpose();
        Ok(BoundInputs {
            condition: optional(inputs.condition)?,
            initial: inputs.carried.iter().map(|carried| optional(carried.first)).collect::<Result<_>>()?,
            sequences: inputs.slices.iter().map(|(id, ..)| position(*id)).collect::<Result<_>>()?,
            scopes: optional(inputs.scopes)?,
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
        self.initial.iter().map(|at| Some(&self.bufs[(*at)?]))
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
    pub(crate) block: BoundBlock,
    /// By carried value: its input, if the step reads it.
    pub(crate) carried: Vec<Option<ArenaRange>>,
    /// By sequence: the step's element.
    elements: Vec<ArenaRange>,
    /// The inputs from saved step state.
    restored: Vec<SavedRange>,
    /// Step scopes of inner operators.
    pub(crate) nested: Vec<Arc<ValueCell>>,
    pub(crate) ends: StepEnds,
}

impl BoundStep {
    pub(crate) fn new(step: &StepPlan, block: BoundBlock) -> Result<BoundStep> {
        let StepPlan { plan, inputs, ends } = step;
        let range = |id: ValueId| arena_range(plan, id);
        let unused = || Arc::new(ValueCell::Steps(Default::default()));
        let nested = inputs.nested.iter().map(|var| block.cell(*var).cloned().unwrap_or_else(unused));
        Ok(BoundStep {
            carried: inputs.carried.iter().map(|id| id.map(range).transpose()).collect::<Result<_>>()?,
            elements: inputs.slices.iter().map(|id| range(*id)).collect::<Result<_>>()?,
            restored: SavedRange::of(plan, &inputs.restored)?,
            nested: nested.collect(),
            block,
            ends: ends.clone(),
        })
    }

    /// Copies carried values into the step's inputs.
    pub(crate) fn feed<'b>(&mut self, values: impl Iterator<Item = Option<&'b [u8]>>) {
        for (input, value) in self.carried.iter().zip(values) {
            if let (Some(ArenaRange { at, bytes }), Some(value)) = (*input, value) {
                self.block.arena.slice_mut::<u8>(at, bytes).copy_from_slice(value);
            }
        }
    }

    /// Copies the step's elements of the sequences.
    pub(crate) fn feed_elements(&mut self, index: usize, inputs: &BoundInputs) -> Result<()> {
        for (ArenaRange { at, .. }, sequence) in self.elements.iter().zip(inputs.sequences()) {
            sequence.copy_part(index, &mut self.block.arena, *at)?;
        }
        Ok(())
    }

    /// Swaps step scopes of inner operators between the saved state and their cells.
    fn swap_nested(&self, step: &mut SavedStep) -> Result<()> {
        for (cell, steps) in self.nested.iter().zip(&mut step.nested) {
            std::mem::swap(&mut *cell.steps()?, steps);
        }
        Ok(())
    }

    /// Runs the block on saved step state.
    pub(crate) fn run_on(&mut self, cx: &Cx, step: &mut SavedStep) -> Result<()> {
        self.block.load(&self.restored, step);
        self.run_with(cx, step)
    }

    /// Runs the block with the step scopes of inner operators.
    pub(crate) fn run_with(&mut self, cx: &Cx, step: &mut SavedStep) -> Result<()> {
        self.swap_nested(step)?;
        let outcome = self.block.run(cx);
        self.swap_nested(step)?;
        outcome
    }
}
