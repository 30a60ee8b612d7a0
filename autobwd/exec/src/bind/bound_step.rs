//! A block bound to memory, with the places of what goes in and comes out.

use std::sync::Arc;

use crate::bind::{
    Options, Outer,
    body::{Body, Span},
};
use autobwd_core::{
    BlockId, Buf, Cx, Program, Result,
    tensor::{Cell, Step},
};
use autobwd_plan::{StepEnds, StepPlan, ValueId};

/// A block ready to run one step: as [`StepPlan`], bound.
pub(crate) struct BoundStep {
    pub(crate) body: Body,
    pub(crate) starts: Vec<Option<Span>>,
    slices: Vec<Span>,
    stored: Vec<(Span, usize)>,
    pub(crate) nested: Vec<Arc<Cell>>,
    pub(crate) ends: StepEnds,
}

impl BoundStep {
    pub(crate) fn new(
        program: &Program,
        block: BlockId,
        step: &StepPlan,
        outer: &[Outer],
        options: Options<'_>,
    ) -> Result<BoundStep> {
        let StepPlan { plan, inputs, ends } = step;
        let body = Body::of_block(program, block, plan, outer, options)?;
        let span = |id: ValueId| body.span(plan, id);
        let starts = inputs.starts.iter().map(|id| id.map(span).transpose()).collect::<Result<_>>()?;
        let slices = inputs.slices.iter().map(|id| span(*id)).collect::<Result<_>>()?;
        let stored = inputs.stored.iter().map(|(id, at)| Ok((span(*id)?, *at))).collect::<Result<_>>()?;
        let unused = || Arc::new(Cell::Steps(Default::default()));
        let nested =
            inputs.nested.iter().map(|var| body.cell(*var).cloned().unwrap_or_else(unused)).collect();
        Ok(BoundStep { body, starts, slices, stored, nested, ends: ends.clone() })
    }

    /// Copies values to where the step starts with them.
    pub(crate) fn feed<'b>(&mut self, values: impl Iterator<Item = Option<&'b [u8]>>) {
        for (start, value) in self.starts.iter().zip(values) {
            if let (Some(Span { at, bytes }), Some(value)) = (*start, value) {
                self.body.arena.slice_mut::<u8>(at, bytes).copy_from_slice(value);
            }
        }
    }

    /// Copies the step's parts of the sequences.
    pub(crate) fn slice<'b>(
        &mut self,
        index: usize,
        sequences: impl Iterator<Item = &'b Buf<'static>>,
    ) -> Result<()> {
        for (Span { at, .. }, sequence) in self.slices.iter().zip(sequences) {
            sequence.copy_part(index, &mut self.body.arena, *at)?;
        }
        Ok(())
    }

    /// Moves what the operators within have left to where they find it, or back.
    fn exchange(&self, step: &mut Step) -> Result<()> {
        for (cell, steps) in self.nested.iter().zip(&mut step.nested) {
            std::mem::swap(&mut *cell.steps()?, steps);
        }
        Ok(())
    }

    /// Runs the block on what a step has left.
    pub(crate) fn run_on(&mut self, cx: &Cx, step: &mut Step) -> Result<()> {
        self.body.load(&self.stored, step);
        self.run_with(cx, step)
    }

    /// Runs the block with the step scopes of the operators within.
    pub(crate) fn run_with(&mut self, cx: &Cx, step: &mut Step) -> Result<()> {
        self.exchange(step)?;
        let outcome = self.body.run(cx);
        self.exchange(step)?;
        outcome
    }
}
