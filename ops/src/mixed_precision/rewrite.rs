//! Inserts the casts.

use std::collections::{HashMap, HashSet};

use autobwd::{
    BlockId, DType, OpDesc, Program, VarDesc,
    op::{BlockCall, Control},
    operators::{Cast, ConditionalBlock, Recurrent, While},
    program::{Site, Var},
};

use super::{
    analysis::{Decisions, is_single},
    lists::narrows,
};

/// Rewrites all blocks as decided.
pub(super) fn rewrite(program: &mut Program, dtype: DType, decisions: &Decisions) {
    let mut rewriter = Rewriter { program, dtype, decisions, frames: vec![] };
    rewriter.block(BlockId::ROOT, HashSet::new());
}

struct Rewriter<'a> {
    program: &'a mut Program,
    dtype: DType,
    decisions: &'a Decisions,
    /// The block that is rewritten, after the blocks around it.
    frames: Vec<Frame>,
}

/// A block that is rewritten.
struct Frame {
    block: BlockId,
    /// The operators so far.
    ops: Vec<OpDesc>,
    /// The 16-bit copies of float32 variables that are up to date.
    halves: HashMap<Var, Var>,
    /// Variables of the blocks around that do not change while the block runs.
    invariant: HashSet<Var>,
    /// Of these, the ones that the block reads in 16 bits, with their copies.
    hoisted: Vec<(Var, Var)>,
}

impl Rewriter<'_> {
    /// Rewrites a block. Returns the variables of the blocks around that it also reads now: the float32 variable, and
    /// its copy.
    fn block(&mut self, id: BlockId, invariant: HashSet<Var>) -> Vec<(Var, Var)> {
        let ops = self.program.block_mut(id).map(|block| std::mem::take(&mut block.ops)).unwrap_or_default();
        let frame = Frame { block: id, ops: vec![], halves: HashMap::new(), invariant, hoisted: vec![] };
        self.frames.push(frame);
        for (op, halves) in ops.into_iter().zip(&self.decisions.half_outputs[id.index()]) {
            self.op(op, halves.as_deref());
        }
        let Some(frame) = self.frames.pop() else { return vec![] };
        if let Some(block) = self.program.block_mut(id) {
            block.ops = frame.ops;
        }
        frame.hoisted
    }

    fn op(&mut self, mut op: OpDesc, half_outputs: Option<&[Var]>) {
        let blocks: Vec<BlockId> = op.attrs.blocks().collect();
        if !blocks.is_empty() {
            let invariant = invariant(self.program, &op);
            for block in blocks {
                for (single, half) in self.block(block, invariant.clone()) {
                    let Some(slot) = op.inputs.slot_of(single) else { continue };
                    let read: Vec<Var> = op.inputs.get(slot.as_str()).iter().copied().chain([half]).collect();
                    op.inputs.set(slot, read);
                }
            }
        }
        let mut widened = vec![];
        let written: Vec<Var> = op.writes().collect();
        if let Some(halves) = half_outputs {
            let narrowed: Vec<Var> = op.reads().filter(|var| narrows(&op, *var)).collect();
            for var in op.inputs.args_mut().filter(|var| narrowed.contains(var)) {
                *var = self.half(*var, op.site);
            }
            for var in op.outputs.args_mut().filter(|var| halves.contains(var)) {
                if self.decisions.retyped[var.index()] {
                    self.retype(*var);
                } else {
                    let single = std::mem::replace(var, self.declare_half(*var));
                    widened.push((single, *var));
                }
            }
        }
        let site = op.site;
        let dtype = self.dtype;
        let Some(frame) = self.frames.last_mut() else { return };
        frame.ops.push(op);
        written.iter().for_each(|var| _ = frame.halves.remove(var));
        for (single, half) in widened {
            frame.ops.push(cast(half, dtype, single, DType::F32, site));
            frame.halves.insert(single, half);
        }
    }

    /// The 16-bit copy of a float32 variable; another variable itself.
    fn half(&mut self, var: Var, site: Option<Site>) -> Var {
        let Some(frame) = self.frames.last() else { return var };
        if var == Var::EMPTY || !is_single(self.program.lookup(frame.block, var)) {
            return var;
        }
        self.half_in(self.frames.len() - 1, var, site)
    }

    /// The copy in the block at this depth.
    fn half_in(&mut self, depth: usize, var: Var, site: Option<Site>) -> Var {
        if let Some(half) = self.frames[depth].halves.get(&var) {
            return *half;
        }
        let half = if depth > 0 && self.frames[depth].invariant.contains(&var) {
            let half = self.half_in(depth - 1, var, site);
            self.frames[depth].hoisted.push((var, half));
            half
        } else {
            let half = self.declare_half_in(self.frames[depth].block, var);
            self.frames[depth].ops.push(cast(var, DType::F32, half, self.dtype, site));
            half
        };
        self.frames[depth].halves.insert(var, half);
        half
    }

    /// Makes a 16-bit variable of a float32 one.
    fn retype(&mut self, var: Var) {
        let (dtype, block) = (self.dtype, self.frames.last().map(|frame| frame.block));
        let block = block.and_then(|block| self.program.block_mut(block));
        if let Some(desc) = block.and_then(|block| block.vars.get_mut(&var)) {
            desc.dtype = dtype;
        }
    }

    fn declare_half(&mut self, var: Var) -> Var {
        let block = self.frames.last().map_or(BlockId::ROOT, |frame| frame.block);
        self.declare_half_in(block, var)
    }

    /// Declares the 16-bit copy of a variable, `x.cast_bf16`.
    fn declare_half_in(&mut self, block: BlockId, var: Var) -> Var {
        let suffix = if self.dtype == DType::BF16 { "bf16" } else { "fp16" };
        let name = format!("{}.cast_{suffix}", self.program.name(var));
        let half = new_var(self.program, &name);
        let desc = self.program.lookup(block, var);
        let (dims, stop_gradient) =
            desc.map(|desc| (desc.dims.clone(), desc.stop_gradient)).unwrap_or_default();
        let desc = VarDesc { stop_gradient, ..VarDesc::new(self.dtype, dims) };
        if let Some(block) = self.program.block_mut(block) {
            block.vars.insert(half, desc);
        }
        half
    }
}

/// A new variable of this name, or with a number after it.
pub(crate) fn new_var(program: &mut Program, name: &str) -> Var {
    if program.find(name).is_none() { program.var(name) } else { program.fresh(name) }
}

fn cast(x: Var, in_dtype: DType, out: Var, out_dtype: DType, site: Option<Site>) -> OpDesc {
    OpDesc { site, ..Cast { x, out, in_dtype, out_dtype }.into() }
}

/// The variables that the block of an operator reads and that do not change while it runs.
fn invariant(program: &Program, op: &OpDesc) -> HashSet<Var> {
    let of_loop = op.as_op::<While>().map(|op| op.call(program));
    let of_branch = || op.as_op::<ConditionalBlock>().map(|op| op.call(program));
    let of_steps = || op.as_op::<Recurrent>().map(|op| op.call(program));
    let call: Option<BlockCall> = of_loop.or_else(of_branch).or_else(of_steps).and_then(Result::ok);
    call.map(|call| call.reads.into_iter().collect()).unwrap_or_default()
}
