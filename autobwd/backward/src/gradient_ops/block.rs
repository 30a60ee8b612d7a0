//! Gradients of sub-blocks: the passes of [`backward`](super) on a sub-block.
//!
//! If a step reads and overwrites a variable, the gradients of the old and of the new value share a name; the order of
//! the operators keeps them apart.

use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    accumulate::accumulate,
    grad_names::GradNames,
    gradient_ops::{GradientEmitter, GradientTemplates, emit},
    preserve_overwritten::{ValueVersions, keep},
    prune::prune,
    relevance::{self, GradientRequest},
    stop_gradients,
};
use autobwd_core::{
    __private::{Lookup, internals::*},
    BlockCall, BlockId, Error, ErrorKind, GradBlock, OpDesc, OpInfoMap, Program, Result, StepCount, Var,
    VarKind,
    operators::zeros,
};

/// A gradient block whose variables are not declared yet.
pub(crate) struct PendingGradBlock {
    pub(crate) block: BlockId,
    /// Gradients that are inputs of a step, with their variables.
    pub(crate) given: Vec<(Var, Var)>,
    pub(crate) names: GradNames,
}

/// The gradient of a sub-block, for the operator that owns it.
pub(crate) struct GradBlockInfo {
    pub(crate) block: GradBlock,
    /// Outer variables that the gradient reads by name.
    pub(crate) reads: FxHashSet<Var>,
}

/// Builds the gradient of a sub-block as a block within `parent`, unless it is empty. `no_grad` says, by outer
/// variable, whether it has no gradient; gradients arrive at the outputs `arriving` of the operator `op`, the owner.
///
/// # Errors
/// The errors of the passes.
pub(crate) fn build(
    ops: &OpInfoMap,
    program: &mut Program,
    (op, call): (&OpDesc, &BlockCall),
    parent: BlockId,
    no_grad: &[bool],
    arriving: &[Var],
    inners: &mut Vec<PendingGradBlock>,
) -> Result<Option<GradBlockInfo>> {
    let ends: Vec<Var> = call.ends().collect();
    program.check_outer_writes(call.block, &ends).into_iter().try_for_each(Err)?;
    let into = program.add_block(Some(parent), Some(call.block));
    let (count, known) = (program.blocks().len(), inners.len());
    let built =
        GradBlockBuilder { ops, program: &mut *program, op, call, into }.build(no_grad, arriving, inners)?;
    if built.is_none() && program.blocks().len() == count && inners.len() == known {
        program.truncate_blocks(into.index());
    }
    Ok(built)
}

struct GradBlockBuilder<'a> {
    ops: &'a OpInfoMap,
    program: &'a mut Program,
    op: &'a OpDesc,
    call: &'a BlockCall,
    into: BlockId,
}

impl GradBlockBuilder<'_> {
    fn forward(&self) -> &autobwd_core::Block {
        // The caller has looked it up.
        self.program.block(self.call.block).unwrap_or(self.program.root())
    }

    /// By variable: whether it has no gradient outside of the block, and whether it has none inside.
    fn no_grad(&self, around: &[bool]) -> Result<(Vec<bool>, Vec<bool>)> {
        let mut outside = around.to_vec();
        outside.resize(self.program.name_count(), false);
        self.forward().vars.keys().for_each(|var| outside[var.index()] = false);
        for (outer, inner, _) in &self.call.slices {
            outside[inner.index()] = around[outer.index()];
        }
        let mut inside = outside.clone();
        let of_data = stop_gradients::find(self.ops, self.program, self.call.block, &outside)?.of_data;
        for (var, desc) in self.forward().vars.iter() {
            inside[var.index()] |= desc.stop_gradient && !of_data.contains(var);
        }
        Ok((outside, inside))
    }

    /// Variables that every step reads and overwrites, with the first operator that overwrites them.
    fn found(&self) -> Vec<(Var, usize)> {
        let is_input = |var: Var| self.op.reads().any(|v| v == var);
        let carried = self.call.carried.iter().filter(|c| c.start == c.end && is_input(c.start));
        let writer = |var: Var| self.forward().ops.iter().position(|op| op.writes().any(|v| v == var));
        carried.filter_map(|c| Some((c.start, writer(c.start)?))).collect()
    }

    /// Operators that the targets depend on; a loop-carried variable becomes a target if a later step needs its
    /// gradient.
    fn path(&self, outside: &[bool], no_grad: &[bool], targets: &mut Vec<Var>) -> Result<Vec<usize>> {
        loop {
            let question = GradientRequest {
                block: self.call.block,
                targets,
                asked: &[],
                computed: vec![false; self.program.name_count()],
                only_asked: false,
            };
            let (path, open) = relevance::find(self.ops, self.program, &question, outside)?;
            let again = !matches!(self.call.steps, StepCount::If(_));
            let handed = self.call.carried.iter().filter(|c| again && open[c.start.index()]);
            let handed = handed.filter(|c| !no_grad[c.start.index()] && !targets.contains(&c.end));
            let more: Vec<Var> = handed.map(|c| c.end).collect();
            if more.is_empty() {
                return Ok(path);
            }
            targets.extend(more);
        }
    }

    /// A loop-carried variable must belong to the directly enclosing block: otherwise its gradient would have to pass
    /// through all blocks in between.
    fn refuse_far_writes(&self, found: &[(Var, usize)], targets: &[Var]) -> Result<()> {
        let around = self.forward().parent.filter(|around| *around != BlockId::ROOT);
        let Some(block) = around.and_then(|around| self.program.block(around)) else { return Ok(()) };
        let far = found.iter().find(|(var, _)| targets.contains(var) && !block.vars.contains_key(var));
        let Some((var, at)) = far else { return Ok(()) };
        let name = self.program.name(*var);
        let text = format!(
            "no gradient passes through `{name}`, which a nested block overwrites: write to another variable"
        );
        let (id, op) = (self.call.block, &self.forward().ops[*at]);
        Err(Error::new(ErrorKind::NoGradient, text).at_op(|| self.program.describe_op(id, *at, op)))
    }

    fn build(
        self,
        around: &[bool],
        arriving: &[Var],
        inners: &mut Vec<PendingGradBlock>,
    ) -> Result<Option<GradBlockInfo>> {
        let (call, id) = (self.call, self.call.block);
        let (cut, no_grad) = self.no_grad(around)?;
        let found = self.found();
        let lasts = call.carried.iter().filter_map(|c| Some((c.last?, c.end)));
        let ends = lasts.chain(call.stacks.iter().map(|(inner, outer)| (*outer, *inner)));
        let mut targets: Vec<Var> = ends.filter(|(out, _)| arriving.contains(out)).map(|(_, v)| v).collect();
        targets.retain(|v| !no_grad[v.index()]);
        let path = self.path(&cut, &no_grad, &mut targets)?;
        self.refuse_far_writes(&found, &targets)?;

        let GradBlockBuilder { ops, program, into, .. } = self;
        let mut names = GradNames::of_block(program, &found);
        let len = program.block(id).map_or(0, |block| block.ops.len());
        let mut values = ValueVersions::of_block(program, &found, len);
        let mut given: FxHashMap<Var, Var> = FxHashMap::default();
        for var in &targets {
            let grad = names.here(program, *var);
            names.record_contribution(grad);
            given.insert(grad, *var);
        }
        let mut emitted = vec![];
        let walk = GradientEmitter {
            ops,
            infos: Lookup::new(ops),
            templates: GradientTemplates::default(),
            program,
            block: id,
            into,
            no_grad: &no_grad,
            computed: &vec![false; no_grad.len()],
            names: &mut names,
            values: &mut values,
            emitted: &mut emitted,
            inners,
        };
        emit(walk, &path)?;
        let grads: FxHashSet<Var> = given.keys().copied().collect();
        let summed = accumulate(program, &mut names, id, &grads, emitted);
        let mut appended = prune(program.name_count(), &names, &grads, &no_grad, summed);
        if appended.is_empty() {
            return Ok(None);
        }
        // The gradient stops at a variable that a step overwrites without depending on its old value.
        let tensor =
            |var: &Var| program.lookup(id, *var).is_none_or(|desc| desc.kind != VarKind::TensorArray);
        let replaced: Vec<Var> = found.iter().map(|(var, _)| *var).filter(tensor).collect();
        for var in replaced.into_iter().filter(|v| targets.contains(v)) {
            let written = |grad: Var| appended.iter().any(|op| op.writes().any(|v| v == grad));
            if let Some(grad) = names.start(var).filter(|grad| !written(*grad)) {
                appended.push(zeros(var, grad));
            }
        }
        let (copies, vars) = keep(ops, program, id, &values, &mut appended)?;
        copies.insert_into(program, id, &mut appended);
        if let Some(block) = program.block_mut(id) {
            block.vars.extend(vars);
        }
        for op in &mut appended {
            op.inputs.args_mut().chain(op.outputs.args_mut()).for_each(|v| *v = names.shown(*v));
        }

        let written: FxHashSet<Var> = appended.iter().flat_map(OpDesc::writes).collect();
        let computes = |v: &Var| {
            let grad = names.start(*v).or_else(|| names.known(*v));
            grad.is_some_and(|grad| written.contains(&names.shown(grad)))
        };
        let computed = call.supplied().filter(computes).collect();
        if let Some(block) = program.block_mut(into) {
            block.ops = appended;
        }
        let around: Vec<Var> = program.captures(into);
        let mut given: Vec<(Var, Var)> =
            around.iter().filter_map(|grad| Some((*grad, *given.get(grad)?))).collect();
        given.sort_by(|a, b| program.name(a.0).cmp(program.name(b.0)));
        let slices = call.slices.iter().map(|(outer, ..)| *outer);
        let by_name: FxHashSet<Var> = call.reads.iter().copied().chain(slices).collect();
        // Recomputed steps read all values that the original steps read.
        let reads = match call.every {
            Some(_) => by_name,
            None => around.into_iter().filter(|v| by_name.contains(v)).collect(),
        };
        let block = GradBlock { block: into, given: given.iter().map(|(_, var)| *var).collect(), computed };
        inners.push(PendingGradBlock { block: into, given, names });
        Ok(Some(GradBlockInfo { block, reads }))
    }
}
