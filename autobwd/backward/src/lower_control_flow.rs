//! Lowering for higher-order gradients: gradients of branches, recurrences and counted loops become branches and
//! recurrences, which are differentiable.
//!
//! The gradient operator of control flow (`conditional_block_grad`, `while_grad`, `recurrent_grad`) runs a gradient block
//! on the step state that the forward operator saved. It has no gradient itself. It is replaced in four steps, from the
//! inside out and from the last operator to the first:
//!
//! 1. A pair is found: the gradient operator and the forward operator, whose block is the gradient block's `forward`.
//! 2. A loop of known trip count ([`trip_count`](crate::trip_count)) that only carries values becomes a `recurrent` over
//!    a sequence of numbers that no step reads (`ticks`). A variable that the step overwrites gets a name for its new
//!    value (`@AFTER@`), since a recurrence keeps both.
//! 3. The forward step and its gradient are fused into one block ([`fuse`]), which recomputes the step from its inputs
//!    (`@AGAIN@`) instead of reading saved state. A recurrence adds the states before each step to its outputs, as
//!    sequences (`@BEFORE@`): they are such inputs.
//! 4. The gradient operator is replaced by a `conditional_block`, or by a `recurrent` in the opposite direction whose
//!    states are the gradients of the forward states and the partial sums of the gradients of shared variables.
//!
//! Operators are replaced in place, and blocks keep their numbers. An operator that is inserted before the current one
//! moves it: `GradientLowering::at` is the current position, and `run` shifts the positions that follow.

mod fuse;

use rustc_hash::FxHashSet;

use crate::{preserve_overwritten::InsertedCopies, stop_gradients, trip_count::trips};
use autobwd_core::{
    __private::internals::*,
    Block, BlockCall, BlockId, CarriedInit, CarriedValue, DType, Dims, Error, ErrorKind, OpDesc, OpInfoMap,
    Origin, Program, Result, StepCount, Var, VarDesc, VarKind,
    operators::{Assign, ConditionalBlock, FillConstant, Recurrent},
};
use fuse::LoopFusion;

/// Replaces the gradients of branches and recurrences that the targets depend on by operators that compute a step
/// together with its gradient, from their inputs alone. A loop of known trip count becomes a recurrence first.
///
/// # Errors
/// Unknown operators; slots that do not fit; unsupported nestings of loops.
pub(super) fn lower(ops: &OpInfoMap, program: &mut Program, targets: &[Var]) -> Result<()> {
    if program.blocks().len() == 1 {
        return Ok(());
    }
    let mut wanted = vec![false; program.name_count()];
    targets.iter().for_each(|v| wanted[v.index()] = true);
    let mut found = vec![];
    for (i, op) in program.root().ops.iter().enumerate().rev() {
        if op.writes().any(|v| wanted[v.index()]) {
            op.reads().for_each(|v| wanted[v.index()] = true);
            found.push(i);
        }
    }
    found.retain(|i| program.root().ops[*i].attrs.blocks().next().is_some());
    if found.is_empty() {
        return Ok(());
    }
    let before = program.clone();
    run(ops, program, BlockId::ROOT, found)?;
    // If verification now fails, report the loop that could not be rewritten.
    if program.blocks().len() > before.blocks().len()
        && let Err(e) = ops.verify(program)
        && ops.verify(&before).is_ok()
    {
        *program = before;
        let text = format!("the gradient of this nested loop cannot be differentiated: {e}");
        return Err(Error::new(ErrorKind::NoGradient, text));
    }
    Ok(())
}

/// The reason why the gradient of a loop cannot be replaced, if the operator is one.
pub(super) fn obstacle(ops: &OpInfoMap, program: &Program, block: BlockId, at: usize) -> Option<String> {
    let (forward_block, index, pair) = find_pair(ops, program, block, at).ok().flatten()?;
    let why = trips(ops, program, (forward_block, index), &pair.forward_call).err()?;
    let op = program.describe_op(forward_block, index, &pair.forward);
    Some(format!("the trip count of {op} is not known before the run: {why}"))
}

/// Replaces operators of a block, from last to first.
fn run(
    ops: &OpInfoMap,
    program: &mut Program,
    block: BlockId,
    found: impl IntoIterator<Item = usize>,
) -> Result<()> {
    let mut inserted = 0;
    for at in found {
        let mut lower = GradientLowering { ops, program, block, at: at + inserted };
        lower.run()?;
        inserted = lower.at - at;
    }
    Ok(())
}

/// The replacement of one operator.
struct GradientLowering<'a> {
    ops: &'a OpInfoMap,
    program: &'a mut Program,
    block: BlockId,
    at: usize,
}

/// A forward operator and its gradient, with the calls of their blocks.
struct ControlFlowPair {
    forward: OpDesc,
    forward_call: BlockCall,
    gradient_call: BlockCall,
}

/// The pair to replace, with the position of its forward operator.
fn find_pair(
    ops: &OpInfoMap,
    program: &Program,
    block: BlockId,
    at: usize,
) -> Result<Option<(BlockId, usize, ControlFlowPair)>> {
    let call = |op: &OpDesc| ops.get(&op.ty)?.call(op, program);
    let gradient = program.block(block).and_then(|block| block.ops.get(at));
    let Some(gradient) = gradient.filter(|op| op.attrs.blocks().next().is_some()) else { return Ok(None) };
    let Some(gradient_call) = call(gradient)?.filter(BlockCall::is_recorded) else { return Ok(None) };
    let Some(body) = program.block(gradient_call.block).and_then(|block| block.forward) else {
        return Ok(None);
    };
    let forward_block = program.block(block).and_then(|block| block.forward).unwrap_or(block);
    let forwards = program.block(forward_block).map_or(&[][..], |block| &block.ops);
    for (index, forward) in forwards.iter().enumerate().filter(|(_, op)| op.attrs.blocks().any(|b| b == body))
    {
        if let Some(forward_call) = call(forward)?.filter(|call| !call.is_recorded()) {
            let forward = forward.clone();
            return Ok(Some((
                forward_block,
                index,
                ControlFlowPair { forward, forward_call, gradient_call },
            )));
        }
    }
    Ok(None)
}

impl GradientLowering<'_> {
    fn run(&mut self) -> Result<()> {
        let find = |lower: &Self| find_pair(lower.ops, lower.program, lower.block, lower.at);
        let Some((.., ControlFlowPair { gradient_call, .. })) = find(self)? else { return Ok(()) };
        // From the inside out; inner operators keep their positions.
        let inner = self.program.block(gradient_call.block).map_or(0, |block| block.ops.len());
        run(self.ops, self.program, gradient_call.block, (0..inner).rev())?;
        let Some((forward_block, index, pair)) = find(self)? else { return Ok(()) };
        let count = match pair.forward_call.steps {
            // An unknown trip count is reported when the gradient is requested.
            StepCount::While(_) => {
                trips(self.ops, self.program, (forward_block, index), &pair.forward_call).ok()
            }
            StepCount::Times(count) => Some(count),
            StepCount::If(_) | StepCount::Each { .. } | StepCount::Recorded { .. } => None,
        };
        if let Some(count) = count {
            self.count_to_recurrence(&pair, forward_block, index, count)?;
        }
        let Some((forward_block, index, pair)) = find(self)? else { return Ok(()) };
        match pair.forward_call.steps {
            StepCount::If(condition) => self.branch(&pair, condition),
            StepCount::Each { reverse } if pair.forward.is::<Recurrent>() => {
                self.recurrence(&pair, forward_block, index, reverse)
            }
            _ => return Ok(()),
        }
        self.clear_block(pair.gradient_call.block);
        Ok(())
    }

    /// Empties a block that is no longer run, with its sub-blocks; blocks keep their numbers.
    fn clear_block(&mut self, block: BlockId) {
        let mut within = vec![false; self.program.blocks().len()];
        for id in (block.index()..within.len()).map(BlockId::new) {
            let Some(old) = self.program.block_mut(id) else { continue };
            within[id.index()] = id == block || old.parent.is_some_and(|parent| within[parent.index()]);
            if within[id.index()] {
                *old = Block { parent: old.parent, ..Block::default() };
            }
        }
    }

    /// Converts a loop into a recurrence of this many steps, over a sequence of numbers that no step reads, if it only
    /// carries values from step to step.
    fn count_to_recurrence(
        &mut self,
        pair: &ControlFlowPair,
        forward_block: BlockId,
        index: usize,
        steps: usize,
    ) -> Result<()> {
        let BlockCall { slices, stacks, sums, carried, .. } = &pair.forward_call;
        let first = |carried: &CarriedValue| match carried.first {
            CarriedInit::Value(first, _) => Some(first),
            CarriedInit::ZerosLike(_) => None,
        };
        let initial_states: Option<Vec<Var>> = carried.iter().map(first).collect();
        let only_carried = slices.is_empty() && stacks.is_empty() && sums.is_empty();
        let Some(initial_states) = initial_states.filter(|_| only_carried) else { return Ok(()) };
        // An inherited `stop_gradient` mark does not count for the loop, but would for a recurrence.
        for var in stop_gradients::find(self.ops, self.program, forward_block, &[])?.of_data {
            let carried = pair.forward_call.carried.iter().any(|carried| carried.start == var);
            let desc = self.program.block_mut(forward_block).and_then(|block| block.vars.get_mut(&var));
            desc.filter(|_| carried).into_iter().for_each(|desc| desc.stop_gradient = false);
        }
        let ticks = self.program.fresh("ticks");
        let dims: Dims = [steps].into_iter().collect();
        let (site, call) = (pair.forward.site, &pair.forward_call);
        let fill = FillConstant::exactly(0.0, vec![steps as i64], DType::I32, ticks);
        let states: Vec<Var> = call.carried.iter().map(|carried| carried.start).collect();
        let end = |carried: &CarriedValue| match carried.start == carried.end {
            true => self.rename_new_version(call.block, carried.start),
            false => carried.end,
        };
        let next_states: Vec<Var> = call.carried.iter().map(end).collect();
        let names = |vars: &[Var]| vars.iter().map(|v| self.program.name(*v).to_string()).collect();
        let recurrent = Recurrent {
            inputs: vec![ticks],
            parameters: call.reads.clone(),
            outputs: vec![],
            final_states: call.carried.iter().map(|carried| carried.last).collect(),
            step_scopes: call.scopes.unwrap_or(Var::EMPTY),
            ex_states: names(&states),
            states: names(&next_states),
            initial_states,
            has_states: true,
            is_train: true,
            reverse: false,
            checkpoint_every: call.every.and_then(|every| i32::try_from(every).ok()).unwrap_or(0),
            sub_block: call.block,
        };
        if let Some(block) = self.program.block_mut(forward_block) {
            let origin = pair.forward.origin;
            block.ops[index] = OpDesc { site, origin, ..recurrent.into() };
            block.vars.insert(ticks, VarDesc { stop_gradient: true, ..VarDesc::new(DType::I32, dims) });
        }
        let fill = OpDesc { site, origin: pair.forward.origin, ..fill };
        InsertedCopies::of(vec![(0, fill)]).insert_into(self.program, forward_block, &mut []);
        self.at += usize::from(forward_block == self.block);
        Ok(())
    }

    /// Gives the new version of an overwritten variable its own name, so that the step keeps the old version.
    fn rename_new_version(&mut self, body: BlockId, var: Var) -> Var {
        let after = self.program.fresh_var(&format!("{}@AFTER@", self.program.name(var)));
        let desc = self.program.lookup(body, var).cloned();
        let desc = desc.map(|desc| VarDesc { persistable: false, parameter: false, ..desc });
        let Some(block) = self.program.block_mut(body) else { return var };
        let Some(first) = block.ops.iter().position(|op| op.writes().any(|v| v == var)) else { return var };
        for (i, op) in block.ops.iter_mut().enumerate().skip(first) {
            op.outputs.args_mut().filter(|v| **v == var).for_each(|v| *v = after);
            if i > first {
                op.inputs.args_mut().filter(|v| **v == var).for_each(|v| *v = after);
            }
        }
        // The old version belongs to the step, not to the enclosing block.
        block.vars.extend(desc.into_iter().flat_map(|desc| [(var, desc.clone()), (after, desc)]));
        after
    }

    fn op(&self, block: BlockId, at: usize) -> Option<&OpDesc> {
        self.program.block(block)?.ops.get(at)
    }

    /// Whether a variable has a value at the operator's position.
    fn is_declared(&self, var: Var) -> bool {
        let ops = self.program.block(self.block).map_or(&[][..], |block| &block.ops);
        let written = ops[..self.at.min(ops.len())].iter().any(|op| op.writes().any(|v| v == var));
        // In a gradient block, given gradients and loop-carried variables have values.
        let given = self.block != BlockId::ROOT
            && self.program.block(self.block).is_some_and(|block| !block.vars.contains_key(&var))
            && self.program.lookup(self.block, var).is_some();
        let given = given || self.own_call().is_some_and(|call| call.supplied().any(|v| v == var));
        let fed = ops.iter().all(|op| op.writes().all(|v| v != var)) && self.block == BlockId::ROOT;
        written || given || fed
    }

    /// The call of the operator's own block, if it is a sub-block.
    fn own_call(&self) -> Option<BlockCall> {
        let parent = self.program.block(self.program.block(self.block)?.parent?)?;
        let owner = parent.ops.iter().find(|op| op.attrs.blocks().any(|block| block == self.block))?;
        self.ops.get(&owner.ty).and_then(|info| info.call(owner, self.program)).ok()?
    }

    /// The block that computes a step and its gradient.
    fn fuse<'b>(&'b mut self, pair: &ControlFlowPair) -> LoopFusion<'b> {
        let into = self.program.add_block(Some(self.block), None);
        LoopFusion::new(self.program, into, pair.gradient_call.block)
    }

    /// A variable for saved step state.
    fn scopes(&mut self) -> Var {
        let var = self.program.fresh("step_scopes");
        let desc = VarDesc { kind: VarKind::StepScopes, ..VarDesc::new(DType::F32, Dims::from([])) };
        self.program.block_mut(self.block).map(|block| block.vars.insert(var, desc));
        var
    }

    /// Adds the states before each step to the outputs of a recurrence, as sequences.
    fn output_states(
        &mut self,
        pair: &ControlFlowPair,
        forward_block: BlockId,
        index: usize,
    ) -> Vec<(Var, Var)> {
        let length = pair
            .forward_call
            .slices
            .first()
            .and_then(|(x, ..)| self.program.lookup(forward_block, *x)?.dims.first().copied());
        let mut sequences = vec![];
        for start in pair.forward_call.carried.iter().map(|carried| carried.start) {
            let Some(desc) = self.program.lookup(pair.forward_call.block, start).cloned() else { continue };
            let sequence = self.program.fresh_var(&format!("{}@BEFORE@", self.program.name(start)));
            let dims = length.into_iter().chain(desc.dims.iter().copied()).collect::<Dims>();
            if let Some(block) = self.program.block_mut(pair.forward_call.block) {
                block.ops.push(Assign { x: start, out: sequence }.into());
                block.vars.insert(sequence, desc.clone());
            }
            if let Some(block) = self.program.block_mut(forward_block) {
                block.vars.insert(sequence, VarDesc { dims, ..desc });
                let op = &mut block.ops[index];
                if let Some(mut recurrent) = op.as_op::<Recurrent>() {
                    recurrent.outputs.push(sequence);
                    *op = OpDesc { site: op.site, origin: op.origin, ..recurrent.into() };
                }
            }
            sequences.push((start, sequence));
        }
        sequences
    }

    /// Replaces the operator, and inserts zeros before it.
    fn replace(&mut self, replacement: OpDesc, zeros: Vec<OpDesc>) {
        let (block, at) = (self.block, self.at);
        if let Some(op) = self.program.block_mut(block).and_then(|block| block.ops.get_mut(at)) {
            let (site, origin) = (op.site, op.origin);
            *op = OpDesc { site, origin, ..replacement };
        }
        let site = self.op(block, at).and_then(|op| op.site);
        let zeros = zeros.into_iter().map(|op| OpDesc { site, origin: Origin::ZeroFill, ..op });
        match self.program.block_mut(block) {
            // In a gradient block, no index refers to its own operators.
            Some(own) if own.forward.is_some() => drop(own.ops.splice(at..at, zeros)),
            _ => InsertedCopies::of(zeros.map(|op| (at, op)).collect()).insert_into(
                self.program,
                block,
                &mut [],
            ),
        }
    }

    fn branch(&mut self, pair: &ControlFlowPair, condition: Var) {
        let carried_inputs = initial_values(&pair.gradient_call, |v| self.is_declared(v));
        let mut fuse = self.fuse(pair);
        fuse.append(pair.forward_call.block);
        for ((start, first), carried) in carried_inputs.iter().zip(&pair.gradient_call.carried) {
            match first {
                Some(first) => fuse.rename(*start, *first),
                None => fuse.zeros(*start, like(&carried.first)),
            }
        }
        fuse.append(pair.gradient_call.block);
        let lasts = pair.gradient_call.carried.iter().filter_map(|c| Some((c.end, c.last?, like(&c.first))));
        let mut out = vec![];
        for (inner, outer, like) in lasts.chain(pair.gradient_call.sums.iter().copied()).collect::<Vec<_>>() {
            fuse.assign(inner, outer, like);
            out.push(outer);
        }
        let block = fuse.finish();
        let scopes = self.scopes();
        let branch = ConditionalBlock {
            cond: condition,
            input: self.program.captures(block),
            out,
            scope: scopes,
            is_scalar_condition: true,
            sub_block: block,
        };
        self.replace(branch.into(), vec![]);
    }

    fn recurrence(&mut self, pair: &ControlFlowPair, forward_block: BlockId, index: usize, reverse: bool) {
        let state_sequences = self.output_states(pair, forward_block, index);
        let slices: Vec<(Var, Var, Option<Var>)> = pair
            .gradient_call
            .slices
            .iter()
            .map(|(outer, inner, like)| (*inner, *like, Some(*outer).filter(|v| self.is_declared(*v))))
            .collect();
        let carried_inputs = initial_values(&pair.gradient_call, |v| self.is_declared(v));
        let mut zeros: Vec<OpDesc> = vec![];
        let mut fuse = self.fuse(pair);
        let mut inputs = vec![];
        for (start, sequence) in &state_sequences {
            fuse.declare_like(*sequence, *start);
            fuse.rename(*start, *sequence);
            inputs.push(*sequence);
        }
        let is_input = |v: &Var| pair.forward_call.slices.iter().any(|(outer, ..)| outer == v);
        for (inner, _, outer) in slices.iter().filter(|(_, _, outer)| outer.is_some_and(|v| is_input(&v))) {
            fuse.declare_like(outer.unwrap_or(*inner), *inner);
            inputs.extend(outer);
        }
        fuse.append(pair.forward_call.block);
        for (inner, like, outer) in slices.iter().filter(|(_, _, outer)| !outer.is_some_and(|v| is_input(&v)))
        {
            match outer {
                Some(outer) => {
                    fuse.declare_like(*outer, *like);
                    fuse.rename(*inner, *outer);
                    inputs.push(*outer);
                }
                None => fuse.zeros(*inner, *like),
            }
        }
        // Loop-carried values: gradients of states, and partial sums.
        let mut states: Vec<(Var, Var, Var, Option<Var>)> = vec![];
        for ((start, first), carried) in carried_inputs.iter().zip(&pair.gradient_call.carried) {
            let like = like(&carried.first);
            let first = first.unwrap_or_else(|| fuse.outer_zeros(like, &mut zeros));
            let inner = fuse.own_gradient(like);
            fuse.rename(*start, inner);
            states.push((first, inner, carried.end, carried.last));
        }
        fuse.append(pair.gradient_call.block);
        let mut initial_states = vec![];
        let mut ex_states = vec![];
        let mut next_states = vec![];
        let mut final_states = vec![];
        for ((first, inner, end, last), carried) in states.into_iter().zip(&pair.gradient_call.carried) {
            initial_states.push(first);
            ex_states.push(inner);
            next_states.push(fuse.copy_out(end, like(&carried.first)));
            final_states.push(last);
        }
        for (inner, outer, like) in &pair.gradient_call.sums {
            initial_states.push(fuse.outer_zeros(*like, &mut zeros));
            let partial_sum = fuse.own_gradient(*like);
            ex_states.push(partial_sum);
            next_states.push(fuse.sum(partial_sum, *inner, *like));
            final_states.push(Some(*outer));
        }
        let mut outputs = vec![];
        for (inner, outer) in &pair.gradient_call.stacks {
            fuse.declare_like(*outer, *inner);
            fuse.assign(*inner, *outer, *inner);
            outputs.push(*outer);
        }
        let own: FxHashSet<Var> = inputs.iter().chain(&ex_states).copied().collect();
        let block = fuse.finish();
        let parameters = self.program.captures(block).into_iter().filter(|v| !own.contains(v)).collect();
        let step_scopes = self.scopes();
        let names = |vars: &[Var]| vars.iter().map(|v| self.program.name(*v).to_string()).collect();
        let recurrent = Recurrent {
            inputs,
            initial_states,
            parameters,
            outputs,
            final_states,
            step_scopes,
            ex_states: names(&ex_states),
            states: names(&next_states),
            has_states: true,
            is_train: true,
            reverse: !reverse,
            checkpoint_every: 0,
            sub_block: block,
        };
        self.replace(recurrent.into(), zeros);
    }
}

/// The inputs of a gradient block under its own names, each with the variable of its initial value.
fn initial_values(call: &BlockCall, has_value: impl Fn(Var) -> bool) -> Vec<(Var, Option<Var>)> {
    let first = |first: CarriedInit| match first {
        CarriedInit::Value(var, _) => Some(var).filter(|v| has_value(*v)),
        CarriedInit::ZerosLike(_) => None,
    };
    call.carried.iter().map(|carried| (carried.start, first(carried.first))).collect()
}

fn like(first: &CarriedInit) -> Var {
    match first {
        CarriedInit::Value(_, like) | CarriedInit::ZerosLike(like) => *like,
    }
}
