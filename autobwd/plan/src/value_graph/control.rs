//! Planning of control flow: the sub-block of an operator is planned for the given shapes, as a plan within the plan.

use std::sync::Arc;

use super::{
    Instruction, ValueId, ValueSource, Wires,
    block_inputs::{BlockInputs, StepEnds, check_carried, check_term},
    builder::GraphBuilder,
    captures::{saved_vars, state_reads},
    request::{InitialValue, PlanRequest},
    step_state::{RerunSteps, SavedValue, StateVar, StepStateField, StepStateLayout},
    sub_block::{ReplayPlan, StepPlan, SubBlockPlan},
};
use crate::Plan;
use autobwd_core::{
    __private::internals::*, BlockCall, CarriedInit, Dims, Error, ErrorKind, Meta, OpDesc, OpInfo, Result,
    Var, VarKind, tensor::padded,
};

/// A sub-block with its plan; its outputs have no values yet.
struct PlannedCall {
    sub_block: SubBlockPlan,
    inputs: Wires,
    /// Dtypes and shapes of its outputs: carried values, stacks, sums, and step scopes.
    outputs: Vec<(Var, Meta)>,
    /// The layout of the state that its steps save.
    layout: Option<Arc<StepStateLayout>>,
}

/// The saved step state that the steps of a sub-block read.
#[derive(Default)]
struct StateSource {
    layout: Option<Arc<StepStateLayout>>,
    /// The steps to rerun, which read the outer values in `inputs`.
    replay: Option<Box<ReplayPlan>>,
    inputs: Wires,
}

/// The state that the steps of a sub-block save.
#[derive(Default)]
struct SavedState {
    values: Vec<SavedValue>,
    bytes: usize,
    layout: StepStateLayout,
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
        let scopes = call.scopes.filter(|v| !call.is_recorded() && self.has_reader[v.index()]);
        let saved = scopes.map(|scopes| saved_vars(self.program, self.ops, scopes)).transpose()?;
        let inputs = self.block_inputs(call)?;
        let Some(planned) = self.plan_call(call, &inputs, saved.clone())? else {
            self.tail = Some(self.dynamic_tail(index, call, inputs, saved)?);
            return Ok(());
        };
        let PlannedCall { mut sub_block, inputs, outputs, layout } = planned;
        sub_block.shares_steps = self.shares_steps(index, call);

        let position = self.graph.instructions.len();
        let mut wires = Wires::new();
        for (var, meta) in outputs {
            let slot = desc.outputs.slot_of(var);
            let meta = meta.with_constant(None).in_slot(slot.map_or("", |slot| slot.as_str()));
            self.check_output(var, &meta)?;
            let id = self.define(var, meta, ValueSource::Instruction(position));
            if Some(var) == call.scopes {
                self.graph.values[id].layout = layout.clone();
            }
            wires.push((None, Some(id)));
        }
        let sub_block = Some(Box::new(sub_block));
        let instruction = Instruction { sub_block, ..Instruction::new(index, desc, info, inputs, wires) };
        self.graph.instructions.push(instruction);
        Ok(())
    }

    /// Whether a later operator of the block consumes the same step scopes, as the gradients of two targets do.
    pub(super) fn shares_steps(&self, index: usize, call: &BlockCall) -> bool {
        let Some(scopes) = call.scopes.filter(|_| call.is_recorded()) else { return false };
        let block = self.program.block(self.request.block);
        let later = block.into_iter().flat_map(|block| block.ops.iter().skip(index + 1));
        later.flat_map(OpDesc::reads).any(|var| var == scopes)
    }

    /// Plans a sub-block whose steps save these variables; `None` if shapes change from step to step.
    fn plan_call(
        &mut self,
        call: &BlockCall,
        inputs: &BlockInputs,
        saved: Option<Vec<StateVar>>,
    ) -> Result<Option<PlannedCall>> {
        let reads = state_reads(self.program, self.ops, call)?;
        let Some(source) = self.state_source(call, inputs, &reads)? else { return Ok(None) };
        let saves_steps = saved.is_some();
        let save_interval = if saves_steps { self.save_interval(call, inputs)? } else { None };
        // Of a step that is rerun, only the inputs are saved.
        let saved = saved.filter(|_| save_interval.is_none()).unwrap_or_default();

        let (given, step_inputs) = inputs.step_inputs(source.layout.as_deref(), &reads);
        let ends = StepEnds::new(self.program, call, inputs, &given, &saved);
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
        let plan = Plan::new(self.program, self.ops, &request)?;
        if plan.graph.tail.is_some() {
            return Ok(None);
        }
        let mut step = StepPlan { plan, inputs: step_inputs, ends };
        let Some(mut outputs) = self.carried_types(inputs, &step)? else { return Ok(None) };
        outputs.extend(self.stack_types(call, inputs, &step)?);
        outputs.extend(self.sum_types(call, &step)?);
        let scopes = call.scopes.filter(|_| !call.is_recorded());
        outputs.extend(scopes.map(|scopes| (scopes, Meta::scopes())));

        let mut state = self.saved_state(call, &given, &mut step, saved);
        let count = inputs.step_count();
        if let Some(save_interval) = save_interval {
            (state.values, state.bytes) = step.carried_inputs();
            state.layout.rerun = Some(RerunSteps { call: call.replay(), save_interval, count });
        }
        let mut outer_values = inputs.values();
        outer_values.extend(source.inputs);
        outer_values.sort();
        outer_values.dedup();
        let sub_block = SubBlockPlan {
            step,
            steps: call.steps,
            count,
            inputs: inputs.clone(),
            saves_steps,
            shares_steps: false,
            saved: state.values,
            saved_bytes: state.bytes,
            save_interval: save_interval.unwrap_or(1),
            replay: source.replay,
        };
        let layout = saves_steps.then(|| Arc::new(state.layout));
        Ok(Some(PlannedCall { sub_block, inputs: outer_values, outputs, layout }))
    }

    /// The saved state of another operator that the steps read; `None` if its layout is known only at run time.
    fn state_source(
        &mut self,
        call: &BlockCall,
        inputs: &BlockInputs,
        reads: &[StateVar],
    ) -> Result<Option<StateSource>> {
        let Some(scopes) = inputs.scopes else {
            let Some(read) = reads.first() else { return Ok(Some(StateSource::default())) };
            let text = format!(
                "`{}` is read in block {}, but it is not among the inputs",
                self.program.name(read.var),
                call.block.index()
            );
            return Err(Error::new(ErrorKind::Program, text));
        };
        let Some(layout) = self.graph.values[scopes].layout.clone() else { return Ok(None) };
        let Some(RerunSteps { call, save_interval, count }) = &layout.rerun else {
            return Ok(Some(StateSource { layout: Some(layout), ..StateSource::default() }));
        };
        let inputs = self.block_inputs(call)?;
        let planned = self.plan_call(call, &inputs, Some(reads.to_vec()))?;
        let planned = planned.ok_or_else(|| Error::internal("steps of several shapes, again"))?;
        let sub_block = SubBlockPlan { save_interval: *save_interval, count: *count, ..planned.sub_block };
        let (carried, _) = sub_block.step.carried_inputs();
        let replay = Some(Box::new(ReplayPlan { block: call.block, sub_block, carried }));
        Ok(Some(StateSource { layout: planned.layout.or(Some(layout)), replay, inputs: planned.inputs }))
    }

    /// The number of steps per saved step, if the others are rerun.
    fn save_interval(&self, call: &BlockCall, inputs: &BlockInputs) -> Result<Option<usize>> {
        let Some(interval) = call.every else { return Ok(None) };
        if call.carried.iter().any(|carried| self.is_list(carried.start)) {
            let text = "the steps change a tensor array, so they cannot be rerun; remove `checkpoint_every`";
            return Err(Error::new(ErrorKind::Program, text));
        }
        // Rerunning all steps as one segment saves no memory; the square root minimises saved plus rerun steps.
        Ok(Some(match inputs.step_count() {
            Some(steps) if steps <= interval => steps.isqrt().max(1),
            _ => interval,
        }))
    }

    /// Dtypes and shapes of carried outputs; `None` if a shape changes from step to step.
    fn carried_types(&self, inputs: &BlockInputs, step: &StepPlan) -> Result<Option<Vec<(Var, Meta)>>> {
        let mut types = vec![];
        let ends = step.inputs.carried.iter().zip(&step.ends.carried);
        for (input, (start, end)) in inputs.carried.iter().zip(ends) {
            let carried = input.carried;
            let end = end.map(|position| step.end_meta(position));
            if input.is_list() {
                types.extend(carried.last.zip(end.or(input.meta.clone())));
                continue;
            }
            let before = input.meta.as_ref().filter(|_| start.is_some() || input.first.is_some());
            let meta = match (end, before) {
                (Some(meta), Some(before)) => {
                    check_carried(self.program.name(carried.start), before, &meta)?;
                    if meta.dims != before.dims {
                        return Ok(None);
                    }
                    meta.dense()
                }
                (Some(meta), None) => meta.dense(),
                (None, Some(before)) => before.clone(),
                (None, None) => self.meta_of(None, like(&carried.first), carried.start)?.dense(),
            };
            types.extend(carried.last.map(|last| (last, meta)));
        }
        Ok(Some(types))
    }

    /// Dtypes and shapes of stacks.
    fn stack_types(
        &self,
        call: &BlockCall,
        inputs: &BlockInputs,
        step: &StepPlan,
    ) -> Result<Vec<(Var, Meta)>> {
        let mut types = vec![];
        for ((var, out), end) in call.stacks.iter().zip(&step.ends.stacks) {
            let (Some(position), Some((_, steps))) = (end, inputs.count) else {
                let name = self.program.name(*var);
                let text = format!("block {} does not compute `{name}`", call.block.index());
                return Err(Error::new(ErrorKind::Program, text));
            };
            let meta = step.end_meta(*position);
            let dims: Dims = std::iter::once(steps).chain(meta.dims.iter().copied()).collect();
            types.push((*out, Meta::new(meta.dtype, dims)));
        }
        Ok(types)
    }

    /// Dtypes and shapes of sums.
    fn sum_types(&self, call: &BlockCall, step: &StepPlan) -> Result<Vec<(Var, Meta)>> {
        let mut types = vec![];
        for ((var, out, like), end) in call.sums.iter().zip(&step.ends.sums) {
            let meta = self.meta_of(None, *like, *like)?.dense();
            if let Some(position) = end {
                check_term(self.program, *var, &step.end_meta(*position), *out, &meta)?;
            }
            types.push((*out, meta));
        }
        Ok(types)
    }

    /// The state that a step saves; step scopes of inner operators are moved, not copied.
    fn saved_state(
        &self,
        call: &BlockCall,
        given: &[InitialValue],
        step: &mut StepPlan,
        saved: Vec<StateVar>,
    ) -> SavedState {
        let mut state = SavedState::default();
        let is_scopes =
            |var: Var| self.program.lookup(call.block, var).is_some_and(|d| d.kind == VarKind::StepScopes);
        let values = &step.plan.graph.values;
        for StateVar { var, elements } in saved {
            let end = step.end_value(var);
            if is_scopes(var) {
                state.layout.nested.push((var, end.and_then(|id| values[id].layout.clone())));
                step.inputs.nested.push(var);
                continue;
            }
            // Positions in `given` are also the value numbers.
            let value: ValueId = given.iter().position(|given| given.var == var).or(end).unwrap_or(0);
            let meta = values[value].meta.clone();
            let offset = elements.then_some(state.bytes);
            if let Some(offset) = offset {
                state.values.push(SavedValue { value, offset });
                state.bytes += padded(meta.bytes().unwrap_or(0));
            }
            state.layout.entries.push(StepStateField { var, meta, offset });
        }
        state
    }
}

fn like(first: &CarriedInit) -> Var {
    match first {
        CarriedInit::Value(_, like) | CarriedInit::ZerosLike(like) => *like,
    }
}
