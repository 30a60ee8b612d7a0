//! Operators with a sub-block whose steps may have different shapes.

use std::sync::Arc;

use crate::bind::{
    bound_block::{ArenaRange, BlockEnd, CapturedValue},
    bound_step::{BoundInputs, StateHandling, StepBlock},
    segment::{PreparedSegment, Segment, SegmentKey, SegmentPlanner},
    step_loop::StepLoop,
};
use autobwd_core::{
    __private::{SavedStep, SavedSteps, ValueCell, add_up, internals::*},
    Bool, Cx, DType, Dims, Error, ErrorKind, Meta, Program, Result, Tensor, Var,
    tensor::padded,
};
use autobwd_plan::{
    DynamicSteps, InitialValue, StateVar, StepEnds, StepInputs, StepStateField, StepStateLayout,
    check_carried, check_term,
};

/// A value whose shape is known at run time.
pub(crate) enum DynamicValue {
    Tensor(Tensor),
    Cell(Meta, Arc<ValueCell>),
}

impl DynamicValue {
    pub(crate) fn meta(&self) -> Meta {
        match self {
            DynamicValue::Tensor(tensor) => tensor.meta(),
            DynamicValue::Cell(meta, _) => meta.clone(),
        }
    }

    pub(crate) fn shape(&self) -> (DType, Dims) {
        let Meta { dtype, dims, .. } = self.meta();
        (dtype, dims)
    }

    pub(crate) fn bytes(&self) -> Option<&[u8]> {
        match self {
            DynamicValue::Tensor(tensor) => Some(tensor.bytes()),
            DynamicValue::Cell(..) => None,
        }
    }
}

/// An operator that is planned step by step.
pub(crate) struct DynamicLoop {
    steps: StepLoop,
    block: DynamicBlock,
}

/// A sub-block whose steps may have different shapes.
struct DynamicBlock {
    planner: Arc<SegmentPlanner>,
    op: Arc<DynamicSteps>,
    inputs: BoundInputs,
    /// Captured outer values.
    outer: Vec<CapturedValue>,
    /// The step scopes that its steps fill or consume.
    scopes: Arc<ValueCell>,
    /// By sum: the cell of a tensor array.
    sum_cells: Vec<Arc<ValueCell>>,
    segment: Segment,
    state: DynamicState,
}

/// The state between steps: carried values and the contributions so far.
#[derive(Default)]
struct DynamicState {
    /// Carried values; `None` if no step has computed one.
    carried: Vec<Option<DynamicValue>>,
    stacks: Vec<Vec<(usize, Tensor)>>,
    sums: Vec<Option<DynamicValue>>,
}

impl DynamicLoop {
    /// A loop with its inputs, captured outer values, and the cells among the values that later operators read.
    pub(crate) fn new(
        planner: Arc<SegmentPlanner>,
        op: Arc<DynamicSteps>,
        inputs: BoundInputs,
        outer: Vec<CapturedValue>,
        captured: &[(InitialValue, CapturedValue)],
    ) -> Result<DynamicLoop> {
        let scopes = inputs.scopes()?.unwrap_or_else(|| Arc::new(ValueCell::Steps(Default::default())));
        let sum_cell = |(_, var, _): &(Var, Var, Var)| {
            let known = captured.iter().find(|(value, _)| value.var == *var);
            match known.map(|(_, location)| location) {
                Some(CapturedValue::Cell(cell)) => cell.clone(),
                _ => Arc::new(ValueCell::Array(Default::default())),
            }
        };
        let saves = op.call.is_recorded() || op.saved.is_some();
        let steps = StepLoop {
            steps: op.call.steps,
            count: op.inputs.step_count().unwrap_or(0),
            limit: planner.loop_limit(),
            scopes: saves.then(|| scopes.clone()),
            shares_steps: op.shares_steps,
            save_interval: 1,
            replay: None,
        };
        let block = DynamicBlock {
            sum_cells: op.call.sums.iter().map(sum_cell).collect(),
            segment: Segment::new(op.call.block, 0),
            state: DynamicState::default(),
            planner,
            op,
            inputs,
            outer,
            scopes,
        };
        Ok(DynamicLoop { steps, block })
    }

    /// Runs its steps; returns its outputs.
    pub(crate) fn run(&mut self, cx: &Cx) -> Result<Vec<(Var, DynamicValue)>> {
        self.block.state = self.block.start()?;
        let outcome = self.steps.run(cx, &mut self.block);
        let state = std::mem::take(&mut self.block.state);
        outcome?;
        self.block.finish(self.steps.count, state)
    }

    /// Bytes of tensor memory in use now.
    pub(crate) fn bytes(&self) -> usize {
        self.block.segment.bytes()
    }
}

impl DynamicBlock {
    /// The state before the first step.
    fn start(&self) -> Result<DynamicState> {
        let DynamicSteps { call, inputs, sums, .. } = &*self.op;
        if !call.is_recorded() {
            *self.scopes.steps()? = Default::default();
        }
        let mut state = DynamicState::default();
        for (input, initial) in inputs.carried.iter().zip(self.inputs.initial_values()) {
            state.carried.push(match (initial, &input.meta) {
                (Some(list), Some(meta)) if meta.array => {
                    Some(DynamicValue::Cell(meta.clone(), list.cell()?.clone()))
                }
                (Some(initial), _) => Some(DynamicValue::Tensor(initial.to_tensor()?)),
                (None, Some(meta)) => Some(DynamicValue::Tensor(zeros(meta)?)),
                (None, None) => None,
            });
        }
        state.stacks.resize_with(call.stacks.len(), Vec::new);
        for (cell, meta) in self.sum_cells.iter().zip(sums) {
            if meta.array {
                cell.clear();
            }
            state.sums.push(meta.array.then(|| DynamicValue::Cell(meta.clone(), cell.clone())));
        }
        Ok(state)
    }

    /// The outputs after all steps.
    fn finish(&self, count: usize, state: DynamicState) -> Result<Vec<(Var, DynamicValue)>> {
        let DynamicSteps { call, inputs, sums, .. } = &*self.op;
        let name = |var: Var| self.planner.program().name(var);
        let mut outputs = vec![];
        for (input, value) in inputs.carried.iter().zip(state.carried) {
            let Some(last) = input.carried.last else { continue };
            outputs.push((last, value.ok_or_else(|| not_computed(name(last)))?));
        }
        for ((_, out), parts) in call.stacks.iter().zip(state.stacks) {
            outputs.push((*out, DynamicValue::Tensor(stack_steps(count, parts, name(*out))?)));
        }
        for (((_, out, _), sum), meta) in call.sums.iter().zip(state.sums).zip(sums) {
            outputs.push((*out, sum.map_or_else(|| zeros(meta).map(DynamicValue::Tensor), Ok)?));
        }
        if let Some(scopes) = call.scopes.filter(|_| !call.is_recorded()) {
            outputs.push((scopes, DynamicValue::Cell(Meta::scopes(), self.scopes.clone())));
        }
        Ok(outputs)
    }
}

impl StepBlock for DynamicBlock {
    fn condition(&self, ran: usize) -> Result<bool> {
        match self.op.inputs.repeat.and_then(|k| self.state.carried[k].as_ref()) {
            Some(DynamicValue::Tensor(value)) if ran > 0 => {
                Ok(value.slice::<Bool>()?.first().is_some_and(|holds| holds.get()))
            }
            _ => self.inputs.condition(),
        }
    }

    fn step(&mut self, cx: &Cx, _: usize, index: usize, mut state: StateHandling<'_>) -> Result<()> {
        let DynamicBlock { planner, op, inputs, outer, segment, state: values, .. } = self;
        let layout_index = match &state {
            StateHandling::Load(step) => step.layout_index,
            _ => None,
        };
        let key = step_key(op, values, layout_index);
        let describe = || describe_step(planner, op, values, layout_index);
        let segment = segment.prepare(cx, planner, &key, outer, describe)?;
        segment.step.feed(values.carried.iter().map(|value| value.as_ref()?.bytes()));
        segment.step.feed_elements(index, inputs)?;
        match &mut state {
            StateHandling::Load(step) => segment.step.run_on(cx, step)?,
            StateHandling::Save(_) | StateHandling::Discard => segment.step.block.run(cx)?,
        }
        values.update(&segment, planner.program(), op, index)?;
        if let (StateHandling::Save(scopes), Some(saved)) = (state, &op.saved) {
            let mut steps = scopes.steps()?;
            let step = saved_step(&segment, saved, planner, &mut steps)?;
            steps.push(step)?;
        }
        Ok(())
    }
}

/// The shapes that a step is planned for.
fn step_key(op: &DynamicSteps, values: &DynamicState, layout_index: Option<usize>) -> SegmentKey {
    let inputs = op.inputs.carried.iter().zip(&values.carried);
    let read = inputs.filter(|(input, _)| input.read || input.is_list());
    (read.filter_map(|(_, value)| Some(value.as_ref()?.shape())).collect(), layout_index)
}

/// The inputs and outputs of a step with the shapes of these values.
fn describe_step(
    planner: &SegmentPlanner,
    op: &DynamicSteps,
    values: &DynamicState,
    layout_index: Option<usize>,
) -> (Vec<InitialValue>, StepInputs, StepEnds) {
    let mut inputs = op.inputs.clone();
    for (input, value) in inputs.carried.iter_mut().zip(&values.carried) {
        input.meta = value.as_ref().map(DynamicValue::meta);
    }
    let layout = layout_index.map_or_else(|| op.layout.clone(), |index| planner.layout(index));
    let (initial, step_inputs) = inputs.step_inputs(layout.as_deref(), &op.reads);
    let saved = op.saved.as_deref().unwrap_or_default();
    let ends = StepEnds::new(planner.program(), &op.call, &inputs, &initial, saved);
    (initial, step_inputs, ends)
}

impl DynamicState {
    /// Takes the outputs of the step with that index in the sequences.
    fn update(
        &mut self,
        segment: &PreparedSegment<'_>,
        program: &Program,
        op: &DynamicSteps,
        index: usize,
    ) -> Result<()> {
        let StepEnds { carried, stacks, sums, .. } = &segment.step.ends;
        for ((input, value), end) in op.inputs.carried.iter().zip(&mut self.carried).zip(carried) {
            match (value, segment.end(*end)?) {
                (Some(DynamicValue::Cell(meta, _)), Some((_, end))) => meta.clone_from(&end.meta),
                (Some(DynamicValue::Cell(..)) | None, None) => {}
                (Some(DynamicValue::Tensor(tensor)), None) => tensor.bytes_mut().fill(0),
                (value, Some((memory, end))) => {
                    let next = Tensor::copy_of(memory, end.range.at, &end.meta)?;
                    if let Some(before) = value {
                        check_carried(program.name(input.carried.start), &before.meta(), &next.meta())?;
                    }
                    *value = Some(DynamicValue::Tensor(next));
                }
            }
        }
        for (parts, end) in self.stacks.iter_mut().zip(stacks) {
            if let Some((memory, end)) = segment.end(*end)? {
                parts.push((index, Tensor::copy_of(memory, end.range.at, &end.meta)?));
            }
        }
        let types = op.call.sums.iter().zip(&op.sums);
        for (((var, out, _), meta), (sum, end)) in types.zip(self.sums.iter_mut().zip(sums)) {
            let Some((memory, end)) = segment.end(*end)? else { continue };
            check_term(program, *var, &end.meta, *out, meta)?;
            let term = || Tensor::copy_of(memory, end.range.at, &end.meta);
            match (&mut *sum, end.cell.as_deref()) {
                (Some(DynamicValue::Cell(_, list)), Some(ValueCell::Array(term))) => {
                    if let ValueCell::Array(list) = &**list {
                        list.add(term)?;
                    }
                }
                (Some(DynamicValue::Tensor(sum)), _) => add_up(sum, &term()?)?,
                _ => *sum = Some(DynamicValue::Tensor(term()?)),
            }
        }
        Ok(())
    }
}

/// The saved state of a finished step, from its inputs and results.
fn saved_step(
    segment: &PreparedSegment<'_>,
    saved: &[StateVar],
    planner: &SegmentPlanner,
    steps: &mut SavedSteps,
) -> Result<SavedStep> {
    let mut layout = StepStateLayout::default();
    let mut nested = vec![];
    let mut parts = vec![];
    let mut bytes = 0;
    for StateVar { var, elements } in saved {
        let (memory, range, meta) = match (segment.input(*var)?, segment.end_of(*var)?) {
            (Some((meta, range)), _) => (&*segment.step.block.arena, range, meta),
            (None, Some((_, BlockEnd { cell: Some(cell), layout: known, .. }))) => {
                if let ValueCell::Steps(_) = &**cell {
                    layout.nested.push((*var, known.clone()));
                    nested.push(std::mem::take(&mut *cell.steps()?));
                }
                continue;
            }
            (None, Some((memory, end))) => (memory, end.range, &end.meta),
            (None, None) => continue,
        };
        let offset = elements.then_some(bytes);
        if *elements {
            parts.push((memory, range));
            bytes += padded(range.bytes);
        }
        layout.entries.push(StepStateField { var: *var, meta: meta.clone(), offset });
    }
    let mut memory = steps.memory(bytes)?;
    let mut offset = 0;
    for (from, ArenaRange { at, bytes }) in parts {
        memory.slice_mut::<u8>(offset, bytes).copy_from_slice(from.slice(at, bytes));
        offset += padded(bytes);
    }
    Ok(SavedStep { memory, nested, layout_index: Some(planner.layout_index(layout)) })
}

fn not_computed(name: &str) -> Error {
    let text = format!("`{name}` has no value and no known shape: no step has computed it");
    Error::new(ErrorKind::NoValue, text)
}

fn zeros(meta: &Meta) -> Result<Tensor> {
    Tensor::zeros(meta.dtype, &meta.dims.known().unwrap_or_default())
}

/// Stacks the results of all steps.
fn stack_steps(count: usize, parts: Vec<(usize, Tensor)>, name: &str) -> Result<Tensor> {
    let (_, first) = parts.first().ok_or_else(|| not_computed(name))?;
    let dims: Vec<usize> = std::iter::once(count).chain(first.dims().iter().copied()).collect();
    let mut stack = Tensor::zeros(first.dtype(), &dims)?;
    let bytes = first.bytes().len();
    for (index, part) in &parts {
        if part.meta() != first.meta() {
            let text = format!("`{name}` is {} in one step and {} in another", part.meta(), first.meta());
            return Err(Error::new(ErrorKind::Shape, text));
        }
        stack.bytes_mut()[index * bytes..][..bytes].copy_from_slice(part.bytes());
    }
    Ok(stack)
}
