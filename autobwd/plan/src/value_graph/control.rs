//! Planning of control flow: the sub-block of an operator is planned for the given shapes, as a plan within the plan.

use std::sync::Arc;

use crate::{
    Plan,
    value_graph::{
        GraphBuilder, Instruction, PlanRequest, ValueId, ValueSource, Wires,
        captures::{BlockInputs, StepEnds, StepInputs, check_carried, check_term, recorded, unsupplied},
    },
};
use autobwd_core::{
    __private::internals::*, BlockCall, BlockId, CarriedInit, Dims, Error, ErrorKind, Meta, OpDesc, OpInfo,
    Result, StepCount, Var, VarKind, tensor::padded,
};

/// The layout of the step state saved for the backward pass.
#[derive(Debug, Default)]
pub struct StepStateLayout {
    pub entries: Vec<StepStateField>,
    /// Step scopes of inner operators; their layout may be known only at run time.
    pub nested: Vec<(Var, Option<Arc<StepStateLayout>>)>,
    /// If only every n-th step is saved, its inputs: the call to rerun, n, and the number of steps, if known.
    replay: Option<(BlockCall, usize, Option<usize>)>,
}

#[derive(Debug, PartialEq)]
/// A value in saved step state.
pub struct StepStateField {
    pub var: Var,
    pub meta: Meta,
    /// Its offset; `None` if only its shape is needed.
    pub at: Option<usize>,
}

impl StepStateLayout {
    /// The entries for these variables, with offsets of those whose elements are read.
    pub fn read(&self, reads: &[(Var, bool)]) -> impl Iterator<Item = (&StepStateField, Option<usize>)> {
        let find = |(var, elements): &(Var, bool)| {
            let entry = self.entries.iter().find(|entry| entry.var == *var)?;
            Some((entry, entry.at.filter(|_| *elements)))
        };
        reads.iter().filter_map(find)
    }

    /// Whether both have the same layout.
    pub fn is(&self, other: &StepStateLayout) -> bool {
        let nested = |record: &StepStateLayout| {
            let id = |(var, record): &(Var, Option<Arc<StepStateLayout>>)| {
                (*var, record.as_ref().map(Arc::as_ptr))
            };
            record.nested.iter().map(id).collect::<Vec<_>>()
        };
        let constants = |record: &StepStateLayout| {
            let bits = |entry: &StepStateField| {
                Some(entry.meta.constant()?.iter().map(|x| x.to_bits()).collect::<Vec<_>>())
            };
            record.entries.iter().map(bits).collect::<Vec<_>>()
        };
        self.entries == other.entries && nested(self) == nested(other) && constants(self) == constants(other)
    }
}

/// A block planned as one step: the values copied in before, and its outputs.
#[derive(Debug)]
pub struct StepPlan {
    pub plan: Plan,
    pub inputs: StepInputs,
    pub ends: StepEnds,
}

/// A sub-block with its plan. Values are numbered as in the outer plan, or as in its own (`inner`).
#[derive(Debug)]
pub struct SubBlockPlan {
    pub step: StepPlan,
    pub steps: StepCount,
    /// The number of steps, if known.
    pub count: Option<usize>,
    pub entering: BlockInputs,
    /// Whether it fills step scopes.
    pub fills: bool,
    /// Whether a later operator consumes the same step scopes.
    pub shared: bool,
    /// Inner values, and their offsets in saved step state.
    pub left: Vec<(ValueId, usize)>,
    /// Bytes saved per step.
    pub left_bytes: usize,
    /// Number of steps per saved step.
    pub every: usize,
    /// The steps that it reruns to restore their state.
    pub again: Option<Box<ReplayPlan>>,
}

/// A sub-block that the backward pass reruns from the inputs of every n-th step.
#[derive(Debug)]
pub struct ReplayPlan {
    pub block: BlockId,
    pub sub_block: SubBlockPlan,
    /// Inner values, and their offsets in the saved inputs of a step.
    pub starts: Vec<(ValueId, usize)>,
}

/// A sub-block with its plan; its outputs have no values yet.
struct PlannedCall {
    called: SubBlockPlan,
    inputs: Wires,
    /// Dtypes and shapes of its outputs: carried values, stacks, sums, and step scopes.
    metas: Vec<(Var, Meta)>,
    record: Option<Arc<StepStateLayout>>,
}

impl SubBlockPlan {
    /// Bytes of all saved steps, if their number is known.
    pub fn held_bytes(&self) -> usize {
        let steps = self.count.filter(|_| !matches!(self.steps, StepCount::Recorded { .. }));
        steps.map_or(0, |steps| steps.div_ceil(self.every).saturating_mul(self.left_bytes))
    }
}

impl ReplayPlan {
    /// Bytes of the steps that are rerun at a time.
    pub fn held_bytes(&self) -> usize {
        let SubBlockPlan { every, count, left_bytes, .. } = self.sub_block;
        count.map_or(0, |count| count.min(every).saturating_mul(left_bytes))
    }
}

/// The carried inputs of a step with their offsets in saved state, and its total size in bytes.
fn starts(called: &SubBlockPlan) -> (Vec<(ValueId, usize)>, usize) {
    let (mut starts, mut bytes) = (vec![], 0);
    for start in called.step.inputs.starts.iter().copied().flatten() {
        starts.push((start, bytes));
        bytes += padded(called.step.plan.graph.values[start].meta.bytes().unwrap_or(0));
    }
    (starts, bytes)
}

impl GraphBuilder<'_> {
    /// Plans an operator that runs a sub-block.
    pub(crate) fn call(
        &mut self,
        index: usize,
        desc: &OpDesc,
        info: &'static OpInfo,
        call: &BlockCall,
    ) -> Result<()> {
        let leaves = call.scopes.filter(|v| !call.is_recorded() && self.left[v.index()]);
        let leave = leaves.map(|scopes| recorded(self.program, self.ops, scopes)).transpose()?;
        let entering = self.enter(call)?;
        let Some(planned) = self.planned(call, &entering, leave.clone())? else {
            self.tail = Some(self.dynamic_tail(index, call, entering, leave)?);
            return Ok(());
        };
        let PlannedCall { mut called, inputs, metas, record } = planned;
        called.shared = self.shares_steps(index, call);

        let (node, mut outputs) = (self.graph.instructions.len(), Wires::new());
        for (var, meta) in metas {
            let slot = desc.outputs.slot_of(var);
            let meta = meta.with_constant(None).in_slot(slot.map_or("", |slot| slot.as_str()));
            self.check_output(var, &meta)?;
            let id = self.define(var, meta, ValueSource::Instruction(node));
            if Some(var) == call.scopes {
                self.graph.values[id].record = record.clone();
            }
            outputs.push((None, Some(id)));
        }
        let called = Some(Box::new(called));
        let node = Instruction { sub_block: called, ..Instruction::new(index, desc, info, inputs, outputs) };
        self.graph.instructions.push(node);
        Ok(())
    }

    /// Whether a later operator of the block consumes the same step scopes, as the gradients of two targets do.
    pub(crate) fn shares_steps(&self, index: usize, call: &BlockCall) -> bool {
        let Some(scopes) = call.scopes.filter(|_| call.is_recorded()) else { return false };
        let block = self.program.block(self.request.block);
        let later = block.into_iter().flat_map(|block| block.ops.iter().skip(index + 1));
        later.flat_map(OpDesc::reads).any(|var| var == scopes)
    }

    /// Plans a sub-block whose steps save these values (the flag says whether with elements); `None` if shapes change
    /// from step to step.
    fn planned(
        &mut self,
        call: &BlockCall,
        entering: &BlockInputs,
        leave: Option<Vec<(Var, bool)>>,
    ) -> Result<Option<PlannedCall>> {
        let program = self.program;
        let mut inputs = entering.inputs();

        // The saved step state of another operator.
        let reads = unsupplied(program, self.ops, call)?;
        let (mut record, mut again) = (None, None);
        if let Some(id) = entering.scopes {
            let Some(left) = self.graph.values[id].record.clone() else { return Ok(None) };
            record = Some(left.clone());
            if let Some((call, every, count)) = &left.replay {
                let entering = self.enter(call)?;
                let planned = self.planned(call, &entering, Some(reads.clone()))?;
                let planned = planned.ok_or_else(|| Error::internal("steps of several shapes, again"))?;
                inputs.extend(planned.inputs);
                let called = SubBlockPlan { every: *every, count: *count, ..planned.called };
                let (starts, _) = starts(&called);
                again = Some(Box::new(ReplayPlan { block: call.block, sub_block: called, starts }));
                record = planned.record.or(record);
            }
        } else if let Some((var, _)) = reads.first() {
            let text = format!(
                "`{}` is read in block {}, but it is not among the inputs",
                program.name(*var),
                call.block.index()
            );
            return Err(Error::new(ErrorKind::Program, text));
        }

        // The step state that it saves itself.
        let fills = leave.is_some();
        // Rerunning all steps as one segment spares no memory; the square root minimises saved plus rerun steps.
        let root = |every: usize| match entering.count.and_then(|(_, steps)| steps.get()) {
            Some(steps) if steps <= every => steps.isqrt().max(1),
            _ => every,
        };
        let every = call.every.filter(|_| fills).map(root);
        let leave = leave.filter(|_| every.is_none()).unwrap_or_default();
        if every.is_some() && call.carried.iter().any(|c| self.is_list(c.start)) {
            let text = "the steps change a tensor array, so they cannot be rerun; remove `checkpoint_every`";
            return Err(Error::new(ErrorKind::Program, text));
        }

        let (given, mut step_inputs) = entering.step_inputs(record.as_deref(), &reads);
        let ends = StepEnds::new(program, call, entering, &given, &leave);
        let request = PlanRequest {
            block: call.block,
            first: 0,
            initial: &given,
            ends: &ends.vars,
            feeds: &[],
            scope: &|_| None,
            fetches: &[],
            unoptimized: self.request.unoptimized,
            graph_only: self.request.graph_only,
        };
        let plan = Plan::new(program, self.ops, &request)?;
        if plan.graph.tail.is_some() {
            return Ok(None);
        }
        // Positions in `given` are also the value numbers.
        let start_of = |v: Var| given.iter().position(|given| given.var == v);
        let end_of = |var: Var| Some(plan.graph.ends[ends.vars.iter().position(|v| *v == var)?]);
        let inner = |id: ValueId| plan.graph.values[id].meta.clone();
        let end = |k: usize| inner(plan.graph.ends[k]);

        let mut metas: Vec<(Var, Meta)> = vec![];
        for ((entered, start), end) in
            entering.carried.iter().zip(&step_inputs.starts).zip(ends.carried.iter().map(|k| k.map(end)))
        {
            let (each, first) = (entered.carried, entered.first);
            if entered.is_list() {
                metas.extend(each.last.zip(end.or(entered.meta.clone())));
                continue;
            }
            let before = entered.meta.as_ref().filter(|_| start.is_some() || first.is_some());
            let meta = match (end, before) {
                (Some(meta), Some(before)) => {
                    check_carried(program.name(each.start), before, &meta)?;
                    if meta.dims != before.dims {
                        return Ok(None);
                    }
                    meta.dense()
                }
                (Some(meta), None) => meta.dense(),
                (None, Some(before)) => before.clone(),
                (None, None) => self.meta_of(None, like(&each.first), each.start)?.dense(),
            };
            metas.extend(each.last.map(|last| (last, meta)));
        }
        for ((var, out), k) in call.stacks.iter().zip(&ends.stacks) {
            let (Some(meta), Some((_, steps))) = (k.map(end), entering.count) else {
                let text = format!("block {} does not compute `{}`", call.block.index(), program.name(*var));
                return Err(Error::new(ErrorKind::Program, text));
            };
            let dims: Dims = std::iter::once(steps).chain(meta.dims.iter().copied()).collect();
            metas.push((*out, Meta::new(meta.dtype, dims)));
        }
        for ((var, out, like), k) in call.sums.iter().zip(&ends.sums) {
            let meta = self.meta_of(None, *like, *like)?.dense();
            if let Some(term) = k.map(end) {
                check_term(program, *var, &term, *out, &meta)?;
            }
            metas.push((*out, meta));
        }
        metas.extend(call.scopes.filter(|_| !call.is_recorded()).map(|scopes| (scopes, Meta::scopes())));

        let is_scopes =
            |v: Var| program.lookup(call.block, v).is_some_and(|desc| desc.kind == VarKind::StepScopes);
        let (inner_scopes, leave): (Vec<_>, Vec<_>) = leave.into_iter().partition(|(v, _)| is_scopes(*v));
        let mut left_bytes = 0;
        let mut left = vec![];
        let entry = |(var, elements): &(Var, bool)| {
            let id = start_of(*var).or_else(|| end_of(*var)).unwrap_or(0);
            let at = elements.then_some(left_bytes);
            if let Some(at) = at {
                left.push((id, at));
                left_bytes += padded(inner(id).bytes().unwrap_or(0));
            }
            StepStateField { var: *var, meta: inner(id), at }
        };
        let entries = leave.iter().map(entry).collect();
        let of = |(v, _): &(Var, bool)| (*v, end_of(*v).and_then(|id| plan.graph.values[id].record.clone()));
        let mut leaves =
            StepStateLayout { entries, nested: inner_scopes.iter().map(of).collect(), replay: None };
        step_inputs.nested.extend(inner_scopes.iter().map(|(var, _)| *var));
        inputs.sort();
        inputs.dedup();
        let mut called = SubBlockPlan {
            steps: call.steps,
            count: entering.count.and_then(|(_, steps)| steps.get()),
            entering: entering.clone(),
            fills,
            shared: false,
            left,
            left_bytes,
            every: every.unwrap_or(1),
            again,
            step: StepPlan { plan, inputs: step_inputs, ends },
        };
        if let Some(every) = every {
            (called.left, called.left_bytes) = starts(&called);
            leaves.replay = Some((call.replay(), every, called.count));
        }
        let record = fills.then(|| Arc::new(leaves));
        Ok(Some(PlannedCall { called, inputs, metas, record }))
    }
}

fn like(first: &CarriedInit) -> Var {
    match first {
        CarriedInit::Value(_, like) | CarriedInit::ZerosLike(like) => *like,
    }
}
