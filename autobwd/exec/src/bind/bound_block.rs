//! A bound block: a plan with its memory.

use std::sync::Arc;

use crate::bind::{
    BindOptions, BoundInstruction, BoundInstructions, CapturedValue, CellBinding, bind,
    dynamic::DynamicKernel, journal::Journal,
};
use autobwd_core::{
    __private::{Memory, SavedStep, ValueCell, internals::*},
    BlockId, Cx, Error, Meta, OpContext, Program, Result, Var,
};
use autobwd_plan::{Location, Plan, StepStateLayout, ValueId};

/// A block ready to run: its instructions in order, and their memory.
pub(crate) struct BoundBlock {
    // Kernels point into the arena, so they must be dropped first.
    pub(crate) instructions: Vec<BoundInstruction>,
    /// The operators after the instructions, planned at run time.
    tail: Option<Box<DynamicKernel>>,
    pub(crate) arena: Memory,
    /// The operator of each instruction, for messages.
    ops: Vec<OpContext>,
    cells: Vec<CellBinding>,
    journal: Journal,
    /// Values required at the end.
    pub(crate) ends: Vec<BlockEnd>,
    pub(crate) scratch_bytes: usize,
    pub(crate) lent_bytes: usize,
}

/// A value required at the end of a block.
pub(crate) struct BlockEnd {
    pub(crate) meta: Meta,
    /// The location of a tensor.
    pub(crate) at: ArenaRange,
    /// The cell of any other value.
    pub(crate) cell: Option<Arc<ValueCell>>,
    pub(crate) record: Option<Arc<StepStateLayout>>,
}

impl BoundBlock {
    /// A sub-block, or operators of dynamic shape in a program.
    pub(crate) fn of_block(
        program: &Program,
        block: BlockId,
        plan: &Plan,
        outer: &[CapturedValue],
        options: BindOptions<'_>,
    ) -> Result<BoundBlock> {
        let arena = Memory::zeroed(plan.memory.arena_bytes)?;
        let bound = bind(program, block, plan, &arena, None, outer, options)?;
        BoundBlock::new(program, block, plan, arena, bound, options.cx)
    }

    /// Runs the instructions that compute constants.
    pub(crate) fn new(
        program: &Program,
        block: BlockId,
        plan: &Plan,
        arena: Memory,
        bound: BoundInstructions,
        cx: &Cx,
    ) -> Result<BoundBlock> {
        let describe = |f: &BoundInstruction| match plan.graph.instructions.get(f.node) {
            Some(node) => program.describe_op(block, node.index, node.described(program, block)),
            None => OpContext::new("instruction", "copy"),
        };
        let BoundInstructions {
            mut instructions,
            constants,
            cells,
            tail,
            journal,
            scratch_bytes,
            lent_bytes,
        } = bound;
        for mut instruction in instructions.drain(..constants) {
            instruction.kernel.run(cx).map_err(|e| e.at_op(|| describe(&instruction)))?;
        }
        let ops = instructions.iter().map(describe).collect();
        let ends = vec![];
        let mut body =
            BoundBlock { ops, instructions, tail, arena, cells, journal, ends, scratch_bytes, lent_bytes };
        let end = |id: &ValueId| {
            let value = &plan.graph.values[*id];
            let cell = body.cell(value.var).filter(|_| value.meta.array).cloned();
            let at = if value.meta.array { ArenaRange { at: 0, bytes: 0 } } else { body.span(plan, *id)? };
            Ok(BlockEnd { meta: value.meta.clone(), at, cell, record: value.record.clone() })
        };
        body.ends = plan.graph.ends.iter().map(end).collect::<Result<_>>()?;
        Ok(body)
    }

    /// Bytes of tensor memory in use.
    pub(crate) fn bytes(&self) -> usize {
        let tail = self.tail.as_ref().map_or(0, |tail| tail.bytes());
        self.arena.len().saturating_add(self.scratch_bytes).saturating_add(tail)
    }

    /// A value required at the end, with its memory.
    pub(crate) fn end(&self, k: usize) -> Result<(&Memory, &BlockEnd)> {
        match &self.tail {
            Some(tail) => tail.end(k),
            None => {
                let end =
                    self.ends.get(k).ok_or_else(|| Error::internal("an output that was not requested"))?;
                Ok((&self.arena, end))
            }
        }
    }

    /// The location of a value that is copied into the block or out of it.
    pub(crate) fn span(&self, plan: &Plan, id: ValueId) -> Result<ArenaRange> {
        let bytes = plan.graph.values[id].meta.bytes().unwrap_or(0);
        // A fetched outer value is copied into the block's arena.
        match plan.memory.fetched_at.get(&id).copied().unwrap_or(plan.memory.locations[id]) {
            Location::Arena(at) => Ok(ArenaRange { at, bytes }),
            _ => Err(Error::internal("an input or output of a sub-block has no place in its arena")),
        }
    }

    /// Loads values of saved step state from these offsets.
    pub(crate) fn load(&mut self, places: &[(ArenaRange, usize)], step: &SavedStep) {
        for (ArenaRange { at, bytes }, offset) in places {
            self.arena.slice_mut::<u8>(*at, *bytes).copy_from_slice(step.memory.slice(*offset, *bytes));
        }
    }

    pub(crate) fn cell(&self, var: Var) -> Option<&Arc<ValueCell>> {
        self.cells.iter().find(|held| held.var == var).map(|held| &held.cell)
    }

    pub(crate) fn run(&mut self, cx: &Cx) -> Result<()> {
        self.each_instruction(cx, |instruction| instruction.kernel.run(cx))
    }

    /// Runs all instructions; restores the scope if one fails or panics.
    #[inline]
    pub(crate) fn each_instruction(
        &mut self,
        cx: &Cx,
        mut run: impl FnMut(&mut BoundInstruction) -> Result<()>,
    ) -> Result<()> {
        let rollback = self.journal.begin(cx)?;
        self.cells.iter().filter(|held| held.own).for_each(|held| held.cell.clear());
        for (instruction, op) in self.instructions.iter_mut().zip(&self.ops) {
            run(instruction).map_err(|e| e.at_op(|| op.clone()))?;
        }
        self.tail.as_mut().map_or(Ok(()), |tail| tail.run(cx))?;
        rollback.commit();
        Ok(())
    }
}

/// A range of bytes in a block's arena.
#[derive(Clone, Copy)]
pub(crate) struct ArenaRange {
    pub(crate) at: usize,
    pub(crate) bytes: usize,
}
