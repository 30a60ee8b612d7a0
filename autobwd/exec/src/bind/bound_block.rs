//! A bound block: instructions in order, with their memory.

use std::sync::Arc;

use crate::bind::journal::Journal;
use autobwd_core::{
    __private::{Arena, Memory, Place, SavedStep, ValueCell, internals::*},
    BlockId, Cx, Error, Kernel, Meta, OpContext, Program, Result, Var,
};
use autobwd_plan::{Location, Plan, SavedValue, StepStateLayout, ValueId};

/// A bound kernel (instruction): one call at run time.
pub(crate) struct BoundInstruction {
    pub(crate) kernel: Box<dyn Kernel + Send>,
    /// The operator (the first one of a fused kernel), for messages; 0 for copies if there are no operators.
    pub(crate) node: usize,
}

/// A captured outer value.
#[derive(Clone)]
pub(crate) enum CapturedValue {
    Tensor(Place),
    Cell(Arc<ValueCell>),
}

/// A value of a block that is not a tensor.
pub(crate) struct CellBinding {
    pub(crate) var: Var,
    pub(crate) cell: Arc<ValueCell>,
    /// Whether a run starts with it empty.
    pub(crate) own: bool,
}

/// The instructions of a plan, in order.
pub(crate) struct BoundInstructions {
    pub(crate) instructions: Vec<BoundInstruction>,
    /// The number of leading instructions that compute constants.
    pub(crate) constants: usize,
    /// Values that are not tensors.
    pub(crate) cells: Vec<CellBinding>,
    /// The operators after the instructions, planned at run time.
    pub(crate) tail: Option<Box<dyn TailKernel + Send>>,
    /// Values of the scope overwritten ahead of an instruction that may fail.
    pub(crate) journal: Journal,
    /// Bytes of tensor memory in fused kernels.
    pub(crate) scratch_bytes: usize,
    /// Maximum of scratch memory of a kernel, in bytes.
    pub(crate) lent_bytes: usize,
}

/// The operators after the instructions of a block, planned at run time.
pub(crate) trait TailKernel {
    fn run(&mut self, cx: &Cx) -> Result<()>;

    /// Bytes of tensor memory in use now.
    fn bytes(&self) -> usize;

    /// A value required at the end of the block, with its memory.
    fn end(&self, position: usize) -> Result<(&Memory, &BlockEnd)>;
}

/// A block ready to run: its instructions in order, and their memory.
pub(crate) struct BoundBlock {
    // Kernels point into the arena, so they must be dropped first.
    pub(crate) instructions: Vec<BoundInstruction>,
    /// The instructions that compute constants, if the arena is lent: a call finds other values there.
    constants: Vec<BoundInstruction>,
    /// The operators after the instructions, planned at run time.
    tail: Option<Box<dyn TailKernel + Send>>,
    pub(crate) arena: Arena,
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
    pub(crate) range: ArenaRange,
    /// The cell of any other value.
    pub(crate) cell: Option<Arc<ValueCell>>,
    /// Of step scopes: the layout of saved step state, if known.
    pub(crate) layout: Option<Arc<StepStateLayout>>,
}

impl BoundBlock {
    /// Runs the instructions that compute constants, if the arena is its own.
    pub(crate) fn new(
        program: &Program,
        block: BlockId,
        plan: &Plan,
        arena: Arena,
        bound: BoundInstructions,
        cx: &Cx,
    ) -> Result<BoundBlock> {
        let describe = |bound: &BoundInstruction| match plan.graph.instructions.get(bound.node) {
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
        let mut constants: Vec<_> = instructions.drain(..constants).collect();
        for instruction in &mut constants {
            instruction.kernel.run(cx).map_err(|e| e.at_op(|| describe(instruction)))?;
        }
        if matches!(arena, Arena::Own(_)) {
            constants.clear();
        }
        let ops = instructions.iter().map(describe).collect();
        let ends = vec![];
        let mut bound = BoundBlock {
            ops,
            instructions,
            constants,
            tail,
            arena,
            cells,
            journal,
            ends,
            scratch_bytes,
            lent_bytes,
        };
        let end = |id: &ValueId| {
            let value = &plan.graph.values[*id];
            let cell = bound.cell(value.var).filter(|_| value.meta.array).cloned();
            let range =
                if value.meta.array { ArenaRange { at: 0, bytes: 0 } } else { arena_range(plan, *id)? };
            Ok(BlockEnd { meta: value.meta.clone(), range, cell, layout: value.layout.clone() })
        };
        bound.ends = plan.graph.ends.iter().map(end).collect::<Result<_>>()?;
        Ok(bound)
    }

    /// Computes the constants of a block with a lent arena; they have been computed before without an error.
    pub(crate) fn begin_call(&mut self, cx: &Cx) -> Result<()> {
        self.constants.iter_mut().try_for_each(|instruction| instruction.kernel.run(cx))
    }

    /// Bytes of tensor memory in use, apart from a lent arena.
    pub(crate) fn bytes(&self) -> usize {
        let tail = self.tail.as_ref().map_or(0, |tail| tail.bytes());
        let arena = match &self.arena {
            Arena::Own(memory) => memory.len(),
            Arena::Lent(_) => 0,
        };
        arena.saturating_add(self.scratch_bytes).saturating_add(tail)
    }

    /// Bytes of copies that a failed run restores.
    pub(crate) fn copied_bytes(&self) -> usize {
        self.journal.bytes()
    }

    /// A value required at the end, with its memory.
    pub(crate) fn end(&self, position: usize) -> Result<(&Memory, &BlockEnd)> {
        if let Some(tail) = &self.tail {
            return tail.end(position);
        }
        let end = self.ends.get(position);
        Ok((&self.arena, end.ok_or_else(|| Error::internal("an output that was not requested"))?))
    }

    /// Copies saved step state to these ranges.
    pub(crate) fn load(&mut self, ranges: &[SavedRange], step: &SavedStep) {
        for SavedRange { range: ArenaRange { at, bytes }, offset } in ranges {
            self.arena.slice_mut::<u8>(*at, *bytes).copy_from_slice(step.memory.slice(*offset, *bytes));
        }
    }

    /// Copies these ranges to saved step state.
    pub(crate) fn save(&self, ranges: &[SavedRange], step: &mut SavedStep) {
        for SavedRange { range: ArenaRange { at, bytes }, offset } in ranges {
            step.memory.slice_mut::<u8>(*offset, *bytes).copy_from_slice(self.arena.slice(*at, *bytes));
        }
    }

    pub(crate) fn cell(&self, var: Var) -> Option<&Arc<ValueCell>> {
        self.cells.iter().find(|binding| binding.var == var).map(|binding| &binding.cell)
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
        self.cells.iter().filter(|binding| binding.own).for_each(|binding| binding.cell.clear());
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

/// A range of a block's arena with its offset in saved step state.
#[derive(Clone, Copy)]
pub(crate) struct SavedRange {
    pub(crate) range: ArenaRange,
    pub(crate) offset: usize,
}

impl SavedRange {
    /// The ranges of saved values.
    pub(crate) fn of(plan: &Plan, values: &[SavedValue]) -> Result<Vec<SavedRange>> {
        let range = |saved: &SavedValue| {
            Ok(SavedRange { range: arena_range(plan, saved.value)?, offset: saved.offset })
        };
        values.iter().map(range).collect()
    }
}

/// The location of a value that is copied into a block or out of it.
pub(crate) fn arena_range(plan: &Plan, id: ValueId) -> Result<ArenaRange> {
    let bytes = plan.graph.values[id].meta.bytes().unwrap_or(0);
    // A fetched outer value is copied into the block's arena.
    match plan.memory.fetched_at.get(&id).copied().unwrap_or(plan.memory.locations[id]) {
        Location::Arena(at) => Ok(ArenaRange { at, bytes }),
        _ => Err(Error::internal("an input or output of a sub-block has no place in its arena")),
    }
}
