//! Execution of operators of dynamic shape: steps with different shapes, and the operators after them.

use std::sync::Arc;

use crate::bind::{
    CapturedValue,
    bound_block::{ArenaRange, BlockEnd},
    bound_step::BoundInputs,
    segment::{PreparedSegment, Segment, SegmentKey, SegmentPlanner},
    step_loop::{StateHandling, StepBlock, StepLoop},
};
use autobwd_core::{
    __private::{Memory, SavedStep, SavedSteps, ValueCell, add_up, internals::*},
    BlockId, Bool, Cx, DType, Dims, Error, ErrorKind, Meta, Result, Tensor, Var,
    tensor::padded,
};
use autobwd_plan::{
    DynamicTail, InitialValue, StepEnds, StepInputs, StepStateField, StepStateLayout, ValueSource,
    check_carried, check_term,
};

/// An operator that is planned step by step, and the operators after it.
pub(crate) struct DynamicKernel {
    block: BlockId,
    steps: StepLoop,
    block_steps: DynamicBlock,
    /// Earlier values that the operators after it read, with their locations.
    captured: Vec<(InitialValue, CapturedValue)>,
    rest: Segment,
    /// The shapes that the operators after it last ran with.
    now: SegmentKey,
}

/// A sub-block whose steps may have different shapes.
struct DynamicBlock {
    planner: Arc<SegmentPlanner>,
    tail: Arc<DynamicTail>,
    inputs: BoundInputs,
    /// Captured outer values.
    outer: Vec<CapturedValue>,
    /// The step scopes that its steps fill or consume.
    scopes: Arc<ValueCell>,
    /// Sums that are tensor arrays, by sum.
    lists: Vec<Arc<ValueCell>>,
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

/// A value with the shape of the last step.
enum DynamicValue {
    Tensor(Tensor),
    Cell(Meta, Arc<ValueCell>),
}

impl DynamicValue {
    fn meta(&self) -> Meta {
        match self {
            DynamicValue::Tensor(tensor) => tensor.meta(),
            DynamicValue::Cell(meta, _) => meta.clone(),
        }
    }

    fn shape(&self) -> (DType, Dims) {
        let Meta { dtype, dims, .. } = self.meta();
        (dtype, dims)
    }

    fn bytes(&self) -> Option<&[u8]> {
        match self {
            DynamicValue::Tensor(tensor) => Some(tensor.bytes()),
            DynamicValue::Cell(..) => None,
        }
    }
}

impl DynamicKernel {
    pub(crate) fn new(
        planner: Arc<SegmentPlanner>,
        block: BlockId,
        tail: Arc<DynamicTail>,
        inputs: BoundInputs,
        outer: Vec<CapturedValue>,
        found: Vec<(InitialValue, CapturedValue)>,
    ) -> Result<DynamicKernel> {
        let scopes = inputs.scopes()?.unwrap_or_else(|| Arc::new(ValueCell::Steps(Default::default())));
        let list = |(_, var, _): &(Var, Var, Var)| {
            let known = found.iter().find(|(given, _)| given.var == *var);
            match known.map(|(_, at)| at) {
                Some(CapturedValue::Cell(cell)) => cell.clone(),
                _ => Arc::new(ValueCell::Array(Default::default())),
            }
        };
        let lists = tail.call.sums.iter().map(list).collect();
        let saves = tail.call.is_recorded() || tail.leave.is_some();
        let steps = StepLoop {
            steps: tail.call.steps,
            count: tail.entering.count.and_then(|(_, steps)| steps.get()).unwrap_or(0),
            limit: planner.loop_limit(),
            scopes: saves.then(|| scopes.clone()),
            shared: tail.shared,
            every: 1,
            replay: None,
        };
        let behind = Segment::new(block, tail.index + 1);
        let (segment, state) = (Segment::new(tail.call.block, 0), DynamicState::default());
        let called = DynamicBlock { planner, tail, inputs, outer, scopes, lists, segment, state };
        Ok(DynamicKernel {
            block,
            steps,
            block_steps: called,
            captured: found,
            rest: behind,
            now: SegmentKey::default(),
        })
    }

    /// Bytes of tensor memory in use now.
    pub(crate) fn bytes(&self) -> usize {
        self.block_steps.segment.bytes() + self.rest.bytes()
    }

    /// A value required at the end, with its memory.
    pub(crate) fn end(&self, k: usize) -> Result<(&Memory, &BlockEnd)> {
        let body = self.rest.body(&self.now);
        body.ok_or_else(|| Error::internal("the end of a segment that has not run"))?.end(k)
    }

    pub(crate) fn run(&mut self, cx: &Cx) -> Result<()> {
        let outputs = self.call(cx).map_err(|e| {
            let (program, index) = (self.block_steps.planner.program(), self.block_steps.tail.index);
            let op = program.block(self.block).and_then(|block| block.ops.get(index));
            match op {
                Some(op) => e.at_op(|| program.describe_op(self.block, index, op)),
                None => e,
            }
        })?;
        self.run_rest(cx, outputs)
    }

    fn call(&mut self, cx: &Cx) -> Result<Vec<(Var, DynamicValue)>> {
        self.block_steps.state = self.block_steps.start()?;
        let outcome = self.steps.run(cx, &mut self.block_steps);
        let state = std::mem::take(&mut self.block_steps.state);
        outcome?;
        self.block_steps.finish(self.steps.count, state)
    }

    /// Runs the operators after it.
    fn run_rest(&mut self, cx: &Cx, outputs: Vec<(Var, DynamicValue)>) -> Result<()> {
        let DynamicBlock { planner, tail, .. } = &self.block_steps;
        let (mut given, mut inputs): (Vec<InitialValue>, _) = (vec![], StepInputs::default());
        let mut outer: Vec<CapturedValue> = vec![];
        let (mut key, mut fed) = (vec![], vec![]);
        let kept = |var: Var| tail.in_scope.iter().any(|(v, _)| *v == var);
        let stays = |given: &InitialValue| outputs.iter().all(|(var, _)| *var != given.var);
        for (found, at) in self.captured.iter().filter(|(given, _)| stays(given)) {
            given.push(InitialValue { source: ValueSource::Outer(outer.len()), ..found.clone() });
            outer.push(at.clone());
        }
        for (var, output) in outputs {
            if let DynamicValue::Tensor(tensor) = &output
                && kept(var)
            {
                planner.keep(var, tensor)?;
                continue;
            }
            key.push(output.shape());
            let (meta, id) = (output.meta(), given.len());
            let source = match output {
                DynamicValue::Tensor(tensor) => {
                    inputs.starts.push(Some(id));
                    fed.push(tensor);
                    ValueSource::Feed
                }
                DynamicValue::Cell(_, cell) => {
                    outer.push(CapturedValue::Cell(cell));
                    ValueSource::Outer(outer.len() - 1)
                }
            };
            given.push(InitialValue { var, meta, source, record: None });
        }
        self.now = (key, None);
        let ends = StepEnds { vars: tail.ends.clone(), ..StepEnds::default() };
        let found = || (given, inputs, ends);
        let ready = self.rest.ready(cx, planner, &self.now, &outer, found)?;
        ready.step.feed(fed.iter().map(|tensor| Some(tensor.bytes())));
        ready.step.body.run(cx)
    }
}

impl DynamicBlock {
    /// The state before the first step.
    fn start(&self) -> Result<DynamicState> {
        let DynamicTail { call, entering, sums, .. } = &*self.tail;
        if !call.is_recorded() {
            *self.scopes.steps()? = Default::default();
        }
        let mut state = DynamicState::default();
        for (each, first) in entering.carried.iter().zip(self.inputs.initial_values()) {
            state.carried.push(match (first, &each.meta) {
                (Some(list), Some(meta)) if meta.array => {
                    Some(DynamicValue::Cell(meta.clone(), list.cell()?.clone()))
                }
                (Some(first), _) => Some(DynamicValue::Tensor(first.to_tensor()?)),
                (None, Some(meta)) => Some(DynamicValue::Tensor(zeros(meta)?)),
                (None, None) => None,
            });
        }
        state.stacks.resize_with(call.stacks.len(), Vec::new);
        for (list, meta) in self.lists.iter().zip(sums) {
            if meta.array {
                list.clear();
            }
            state.sums.push(meta.array.then(|| DynamicValue::Cell(meta.clone(), list.clone())));
        }
        Ok(state)
    }

    /// The outputs after all steps.
    fn finish(&self, count: usize, state: DynamicState) -> Result<Vec<(Var, DynamicValue)>> {
        let DynamicTail { call, entering, sums, .. } = &*self.tail;
        let name = |var: Var| self.planner.program().name(var);
        let mut outputs = vec![];
        for (each, value) in entering.carried.iter().zip(state.carried) {
            let Some(last) = each.carried.last else { continue };
            outputs.push((last, value.ok_or_else(|| not_computed(name(last)))?));
        }
        for ((_, out), parts) in call.stacks.iter().zip(state.stacks) {
            outputs.push((*out, DynamicValue::Tensor(stack(count, parts, name(*out))?)));
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
        match self.tail.entering.repeat.and_then(|k| self.state.carried[k].as_ref()) {
            Some(DynamicValue::Tensor(value)) if ran > 0 => {
                Ok(value.slice::<Bool>()?.first().is_some_and(|holds| holds.get()))
            }
            _ => self.inputs.condition(),
        }
    }

    fn step(&mut self, cx: &Cx, _: usize, index: usize, mut saved: StateHandling<'_>) -> Result<()> {
        let DynamicBlock { planner, tail, inputs, outer, segment, state, .. } = self;
        let DynamicTail { call, entering, reads, leave, .. } = &**tail;
        let number = match &saved {
            StateHandling::Load(step) => step.record,
            _ => None,
        };
        let record = number.map_or_else(|| tail.record.clone(), |number| planner.record(number));
        let known = entering.carried.iter().zip(&state.carried);
        let known = known.filter(|(each, _)| each.read || each.is_list());
        let key = (known.filter_map(|(_, value)| Some(value.as_ref()?.shape())).collect(), number);
        let program = planner.program();
        let found = || {
            let mut entering = entering.clone();
            for (each, value) in entering.carried.iter_mut().zip(&state.carried) {
                each.meta = value.as_ref().map(DynamicValue::meta);
            }
            let (given, inputs) = entering.step_inputs(record.as_deref(), reads);
            let leave = leave.as_deref().unwrap_or_default();
            let ends = StepEnds::new(program, call, &entering, &given, leave);
            (given, inputs, ends)
        };
        let ready = segment.ready(cx, planner, &key, outer, found)?;
        ready.step.feed(state.carried.iter().map(|value| value.as_ref()?.bytes()));
        ready.step.slice(index, inputs)?;
        match &mut saved {
            StateHandling::Load(step) => ready.step.run_on(cx, step)?,
            StateHandling::Save(_) | StateHandling::Discard => ready.step.body.run(cx)?,
        }

        // Outputs of the step.
        let StepEnds { carried, stacks, sums, .. } = &ready.step.ends;
        for ((each, value), k) in entering.carried.iter().zip(&mut state.carried).zip(carried) {
            match (value, ready.end(*k)?) {
                (Some(DynamicValue::Cell(meta, _)), Some((_, end))) => meta.clone_from(&end.meta),
                (Some(DynamicValue::Cell(..)) | None, None) => {}
                (Some(DynamicValue::Tensor(tensor)), None) => tensor.bytes_mut().fill(0),
                (value, Some((memory, end))) => {
                    let next = Tensor::copy_of(memory, end.at.at, &end.meta)?;
                    if let Some(before) = value {
                        check_carried(program.name(each.carried.start), &before.meta(), &next.meta())?;
                    }
                    *value = Some(DynamicValue::Tensor(next));
                }
            }
        }
        for (parts, k) in state.stacks.iter_mut().zip(stacks) {
            if let Some((memory, end)) = ready.end(*k)? {
                parts.push((index, Tensor::copy_of(memory, end.at.at, &end.meta)?));
            }
        }
        let metas = call.sums.iter().zip(&tail.sums);
        for (((var, out, _), meta), (sum, k)) in metas.zip(state.sums.iter_mut().zip(sums)) {
            let Some((memory, end)) = ready.end(*k)? else { continue };
            check_term(program, *var, &end.meta, *out, meta)?;
            let term = || Tensor::copy_of(memory, end.at.at, &end.meta);
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
        if let (StateHandling::Save(scopes), Some(leave)) = (saved, leave) {
            let mut steps = scopes.steps()?;
            let step = leaves(&ready, leave, planner, &mut steps)?;
            steps.push(step)?;
        }
        Ok(())
    }
}

/// The saved state of a finished step, from its inputs and results.
fn leaves(
    ready: &PreparedSegment<'_>,
    leave: &[(Var, bool)],
    planner: &SegmentPlanner,
    steps: &mut SavedSteps,
) -> Result<SavedStep> {
    let (mut record, mut nested, mut parts, mut bytes) = (StepStateLayout::default(), vec![], vec![], 0);
    for (var, elements) in leave {
        let (memory, at, meta) = match (ready.input(*var)?, ready.end_of(*var)?) {
            (Some((meta, at)), _) => (&ready.step.body.arena, at, meta),
            (None, Some((_, BlockEnd { cell: Some(cell), record: known, .. }))) => {
                if let ValueCell::Steps(_) = &**cell {
                    record.nested.push((*var, known.clone()));
                    nested.push(std::mem::take(&mut *cell.steps()?));
                }
                continue;
            }
            (None, Some((memory, end))) => (memory, end.at, &end.meta),
            (None, None) => continue,
        };
        let offset = elements.then_some(bytes);
        if *elements {
            parts.push((memory, at));
            bytes += padded(at.bytes);
        }
        record.entries.push(StepStateField { var: *var, meta: meta.clone(), at: offset });
    }
    let mut memory = steps.memory(bytes)?;
    let mut offset = 0;
    for (from, ArenaRange { at, bytes }) in parts {
        memory.slice_mut::<u8>(offset, bytes).copy_from_slice(from.slice(at, bytes));
        offset += padded(bytes);
    }
    Ok(SavedStep { memory, nested, record: Some(planner.number(record)) })
}

fn not_computed(name: &str) -> Error {
    let text = format!("`{name}` has no value and no known shape: no step has computed it");
    Error::new(ErrorKind::NoValue, text)
}

fn zeros(meta: &Meta) -> Result<Tensor> {
    Tensor::zeros(meta.dtype, &meta.dims.known().unwrap_or_default())
}

/// Stacks the results of so many steps.
fn stack(count: usize, parts: Vec<(usize, Tensor)>, name: &str) -> Result<Tensor> {
    let (_, first) = parts.first().ok_or_else(|| not_computed(name))?;
    let dims: Vec<usize> = std::iter::once(count).chain(first.dims().iter().copied()).collect();
    let mut all = Tensor::zeros(first.dtype(), &dims)?;
    let bytes = first.bytes().len();
    for (index, part) in &parts {
        if part.meta() != first.meta() {
            let text = format!("`{name}` is {} in one step and {} in another", part.meta(), first.meta());
            return Err(Error::new(ErrorKind::Shape, text));
        }
        all.bytes_mut()[index * bytes..][..bytes].copy_from_slice(part.bytes());
    }
    Ok(all)
}
