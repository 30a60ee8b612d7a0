//! Control flow: branches as `If`, loops as `Loop`, recurrences as `Scan`.
//!
//! A loop or recurrence with a gradient has further outputs, the states at the start of each step, as sequences. Its
//! gradient runs over them, from the last step to the first, and first recomputes the step. The gradient of a branch
//! recomputes the branch.

use std::{
    collections::{HashMap, HashSet},
    rc::Rc,
};

use autobwd::{
    __private::internals::*,
    BlockId, DType, Dims, Error, ErrorKind, OpDesc, OpInfoMap, Program, Result,
    op::{BlockCall, CarriedInit, CarriedValue, StepCount},
    program::{Var, VarKind},
};

use super::{
    ProgramWriter,
    nodes::{SubGraph, TypedValue},
    onnx_graph::{NodeAttr, OnnxGraph, OnnxValue, VariableValues},
};

/// What the gradients of control flow read.
pub(super) struct ForwardCalls {
    /// The variables for saved steps that a gradient reads.
    read: HashSet<Var>,
    steps: HashMap<Var, Rc<ForwardSteps>>,
}

impl ForwardCalls {
    pub(super) fn of(program: &Program, ops: &OpInfoMap) -> Result<ForwardCalls> {
        let mut read = HashSet::new();
        for op in program.blocks().iter().flat_map(|block| &block.ops) {
            let call = ops.get(&op.ty)?.call(op, program)?.filter(BlockCall::is_recorded);
            read.extend(call.and_then(|call| call.scopes));
        }
        Ok(ForwardCalls { read, steps: HashMap::new() })
    }
}

/// A forward operator, for its gradient.
pub(super) struct ForwardSteps {
    pub(super) call: BlockCall,
    /// What variables held before it.
    pub(super) values: VariableValues,
    /// The condition of a branch.
    condition: Option<OnnxValue>,
    /// States at the start of each step, by their names in the step.
    states: Vec<(Var, OnnxValue)>,
    /// States whose name means, to the gradient, the value at the start of the step, although the step changes it.
    starts: Vec<Var>,
}

/// Inputs and outputs of the graph of a `Scan` under construction.
#[derive(Default)]
struct ScanInputs {
    sequences: Vec<OnnxValue>,
    elements: Vec<TypedValue>,
}

impl ScanInputs {
    /// The current element of a sequence.
    fn element(
        &mut self,
        graph: &mut OnnxGraph<'_>,
        sequence: OnnxValue,
        dtype: DType,
        dims: Dims,
    ) -> OnnxValue {
        if let Some(at) = self.sequences.iter().position(|known| *known == sequence) {
            return self.elements[at].value;
        }
        let value = graph.unnamed();
        self.sequences.push(sequence);
        self.elements.push(TypedValue { value, dtype, dims });
        value
    }
}

/// The variable whose shape an initial value has.
pub(super) fn like(carried: &CarriedValue) -> Var {
    match carried.first {
        CarriedInit::Value(_, like) | CarriedInit::ZerosLike(like) => like,
    }
}

/// Writes zeros in the shape of a variable.
pub(super) fn zeros(graph: &mut OnnxGraph<'_>, like: Var) -> Result<OnnxValue> {
    let zero = graph.scalar(graph.dtype(like)?, 0.0)?;
    let dims = match graph.values.get(&like).copied() {
        Some(value) if graph.shape(like)?.contains(&-1) => graph.op("Shape", &[value], &[]),
        _ => {
            let dims = graph.dims(like)?;
            graph.ints(&dims)?
        }
    };
    Ok(graph.op("Expand", &[zero, dims], &[]))
}

/// What a variable holds, or zeros in the shape of another.
pub(super) fn value_or_zeros(graph: &mut OnnxGraph<'_>, var: Var, like: Var) -> Result<OnnxValue> {
    match graph.values.get(&var) {
        Some(value) => Ok(*value),
        None => zeros(graph, like),
    }
}

/// The value that a state begins with.
pub(super) fn first_value(graph: &mut OnnxGraph<'_>, carried: &CarriedValue) -> Result<OnnxValue> {
    match carried.first {
        CarriedInit::Value(var, like) => value_or_zeros(graph, var, like),
        CarriedInit::ZerosLike(like) => zeros(graph, like),
    }
}

/// A value with the dtype and the dimensions of a variable.
pub(super) fn typed(graph: &OnnxGraph<'_>, value: OnnxValue, var: Var) -> Result<TypedValue> {
    let desc = graph.desc(var)?;
    if desc.kind != VarKind::Tensor {
        return Err(not_a_tensor(graph, var));
    }
    Ok(TypedValue { value, dtype: desc.dtype, dims: desc.dims.clone() })
}

#[cold]
fn not_a_tensor(graph: &OnnxGraph<'_>, var: Var) -> Error {
    let text = format!("`{}` is carried from step to step, but is not a tensor", graph.name(var));
    Error::new(ErrorKind::Program, text)
}

impl ProgramWriter<'_> {
    /// A condition as a scalar.
    pub(super) fn condition(&mut self, var: Var) -> Result<OnnxValue> {
        let value = self.graph.read(var)?;
        if self.graph.rank(var)? == 0 { Ok(value) } else { self.graph.reshape(value, &[]) }
    }

    /// Writes an operator that runs a block.
    pub(super) fn control(&mut self, op: &OpDesc, call: &BlockCall) -> Result<()> {
        match call.steps {
            StepCount::If(var) => {
                let condition = self.condition(var)?;
                self.branch(op, call, condition)
            }
            StepCount::While(var) => self.repeat(op, call, var),
            StepCount::Each { reverse } => self.scan(op, call, reverse, None),
            StepCount::Recorded { .. } => {
                let forward = call.scopes.and_then(|scopes| self.steps.steps.get(&scopes).cloned());
                let forward = forward.ok_or_else(|| {
                    let text = format!("operator `{}` reads steps that no operator before it saves", op.ty);
                    Error::new(ErrorKind::Program, text)
                })?;
                match (forward.condition, forward.call.steps) {
                    (Some(condition), _) => self.branch_gradient(call, condition, &forward),
                    (None, StepCount::Each { reverse }) => self.scan(op, call, !reverse, Some(&forward)),
                    _ => self.repeat_gradient(call, &forward),
                }
            }
            StepCount::Times(_) => {
                Err(Error::new(ErrorKind::Format, format!("operator `{}` has no form in ONNX", op.ty)))
            }
        }
    }

    /// Remembers a forward operator if there is a gradient to read it.
    pub(super) fn save(
        &mut self,
        op: &OpDesc,
        call: &BlockCall,
        values: VariableValues,
        condition: Option<OnnxValue>,
        states: Vec<(Var, OnnxValue)>,
    ) {
        if let Some(scopes) = call.scopes.filter(|scopes| self.steps.read.contains(scopes)) {
            let changed = call.carried.iter().filter(|carried| carried.start == carried.end);
            let starts = changed.map(|carried| carried.start).filter(|start| op.reads().any(|v| v == *start));
            let starts = starts.collect();
            let forward = ForwardSteps { call: call.clone(), values, condition, states, starts };
            self.steps.steps.insert(scopes, Rc::new(forward));
        }
    }

    /// Writes the graph of a node.
    pub(super) fn sub_graph(
        &mut self,
        inputs: Vec<TypedValue>,
        write: impl FnOnce(&mut Self) -> Result<Vec<TypedValue>>,
    ) -> Result<SubGraph> {
        let around = self.graph.enter();
        let outputs = write(self);
        let (outputs, failed) = match outputs {
            Ok(outputs) => (outputs, None),
            Err(e) => (vec![], Some(e)),
        };
        let graph = self.graph.leave(around, inputs, outputs);
        failed.map_or(Ok(graph), Err)
    }

    /// Appends the operators of a block to the graph of a node, and for a gradient those of the forward step before it.
    pub(super) fn step(
        &mut self,
        call: &BlockCall,
        inputs: &[(Var, OnnxValue)],
        forward: Option<(&ForwardSteps, &[(Var, OnnxValue)])>,
        ends: &[Var],
    ) {
        if let Some((forward, inputs)) = forward {
            // The forward step read what variables held then.
            let now = std::mem::replace(&mut self.graph.values, forward.values.clone());
            self.step(&forward.call, inputs, None, &[]);
            let after = std::mem::replace(&mut self.graph.values, now);
            let computed = |(var, value): &(Var, OnnxValue)| forward.values.get(var) != Some(value);
            self.graph.values.extend(after.into_iter().filter(computed));
            let starts = inputs.iter().filter(|(var, _)| forward.starts.contains(var));
            self.graph.values.extend(starts.copied());
        }
        let values = &mut self.graph.values;
        if let Some(block) = self.program.block(call.block) {
            // Variables of these names around the block are others.
            let written = block.ops.iter().flat_map(OpDesc::writes);
            let sums = call.sums.iter().map(|(inner, ..)| *inner);
            for var in block.vars.keys().copied().chain(written).chain(sums) {
                values.remove(&var);
            }
        }
        values.extend(inputs.iter().copied());
        let around = self.graph.set_block(call.block);
        self.block(call.block, ends);
        self.graph.set_block(around);
    }

    /// A value with the type of a variable in a block, or of another one where it is not declared there.
    fn typed(&mut self, value: OnnxValue, block: BlockId, var: Var, like: Var) -> Result<TypedValue> {
        let around = self.graph.set_block(block);
        let own = if self.graph.desc(var).is_ok() { var } else { like };
        let typed = typed(&self.graph, value, own);
        self.graph.set_block(around);
        typed
    }

    /// The states of a step that its gradient reads.
    fn saved_states(&self, call: &BlockCall) -> Vec<Var> {
        if call.scopes.is_none_or(|scopes| !self.steps.read.contains(&scopes)) {
            return vec![];
        }
        let blocks = self.program.blocks().iter().enumerate();
        let of_step =
            blocks.filter(|(i, block)| *i == call.block.index() || block.forward == Some(call.block));
        let read: HashSet<Var> = of_step.flat_map(|(_, block)| &block.ops).flat_map(OpDesc::reads).collect();
        let starts = call.carried.iter().map(|carried| carried.start);
        let mut saved: Vec<Var> = starts.filter(|start| read.contains(start)).collect();
        if saved.is_empty() && call.slices.is_empty() {
            // As many as there are steps.
            saved.extend(call.condition());
        }
        saved
    }

    /// Initial values of states, sums among them, and the inputs that hold them in the graph of a step.
    fn states(&mut self, call: &BlockCall) -> Result<(Vec<OnnxValue>, Vec<TypedValue>)> {
        let (mut firsts, mut inputs) = (vec![], vec![]);
        for carried in &call.carried {
            firsts.push(first_value(&mut self.graph, carried)?);
            let value = self.graph.unnamed();
            inputs.push(self.typed(value, call.block, carried.start, like(carried))?);
        }
        for (_, _, like) in &call.sums {
            firsts.push(zeros(&mut self.graph, *like)?);
            let value = self.graph.unnamed();
            inputs.push(typed(&self.graph, value, *like)?);
        }
        Ok((firsts, inputs))
    }

    /// The states at the end of a step.
    fn next_states(&mut self, call: &BlockCall, states: &[TypedValue]) -> Result<Vec<TypedValue>> {
        let mut next = vec![];
        for (carried, state) in call.carried.iter().zip(states) {
            let value = value_or_zeros(&mut self.graph, carried.end, like(carried))?;
            next.push(TypedValue { value, ..state.clone() });
        }
        for ((inner, ..), state) in call.sums.iter().zip(&states[call.carried.len()..]) {
            let term = self.graph.values.get(inner).copied();
            let value = term.map_or(state.value, |term| self.graph.add(state.value, term));
            next.push(TypedValue { value, ..state.clone() });
        }
        Ok(next)
    }

    /// Sets what variables hold after the last step.
    fn set_last_states(&mut self, call: &BlockCall, values: &[OnnxValue]) {
        let lasts = call.carried.iter().map(|carried| carried.last);
        let sums = call.sums.iter().map(|(_, outer, _)| Some(*outer));
        for (var, value) in lasts.chain(sums).zip(values) {
            self.graph.write(var, *value);
        }
    }

    /// The inputs of the graph of a `Loop`: the number of the step, the condition, and states.
    fn loop_inputs(&mut self, states: &[TypedValue]) -> Vec<TypedValue> {
        let [step, going] = [DType::I64, DType::Bool].map(|dtype| {
            let value = self.graph.unnamed();
            TypedValue { value, dtype, dims: Dims::from([]) }
        });
        [step, going].into_iter().chain(states.iter().cloned()).collect()
    }

    /// Steps while a condition holds.
    fn repeat(&mut self, op: &OpDesc, call: &BlockCall, holds: Var) -> Result<()> {
        let values = self.graph.values.clone();
        let first = self.condition(holds)?;
        let (firsts, states) = self.states(call)?;
        let saved = self.saved_states(call);
        let inputs: Vec<(Var, OnnxValue)> =
            call.carried.iter().zip(&states).map(|(carried, state)| (carried.start, state.value)).collect();
        let graph_inputs = self.loop_inputs(&states);
        let going = graph_inputs[1].clone();
        let ends: Vec<Var> = call.ends().collect();
        let body = self.sub_graph(graph_inputs, |writer| {
            writer.step(call, &inputs, None, &ends);
            let again = writer.condition(holds)?;
            let mut outputs = vec![TypedValue { value: again, ..going }];
            outputs.extend(writer.next_states(call, &states)?);
            outputs.extend(starts_of(&saved, call, &states));
            Ok(outputs)
        })?;
        let node_inputs = [None, Some(first)].into_iter().chain(firsts.into_iter().map(Some)).collect();
        let count = states.len() + saved.len();
        let outputs = self.graph.node("Loop", node_inputs, &[], vec![("body", body)], count);
        self.set_last_states(call, &outputs);
        let sequences = outputs[states.len()..].iter().copied();
        self.save(op, call, values, None, saved.into_iter().zip(sequences).collect());
        Ok(())
    }

    /// As many steps as a loop has taken, from the last to the first.
    ///
    /// It is no `Scan`, which implementations refuse for sequences without elements.
    fn repeat_gradient(&mut self, call: &BlockCall, forward: &ForwardSteps) -> Result<()> {
        let (firsts, states) = self.states(call)?;
        let no_states = || Error::internal("a loop without saved states");
        let (_, sequence) = *forward.states.first().ok_or_else(no_states)?;
        let [zero, one] = [0.0, 1.0].map(|number| self.graph.scalar(DType::I64, number));
        let shape = self.graph.op("Shape", &[sequence], &[]);
        let count = self.graph.op("Gather", &[shape, zero?], &[]);
        let last = self.graph.sub(count, one?);
        let graph_inputs = self.loop_inputs(&states);
        let (step, going) = (graph_inputs[0].value, graph_inputs[1].clone());
        let inputs: Vec<(Var, OnnxValue)> =
            call.carried.iter().zip(&states).map(|(carried, state)| (carried.start, state.value)).collect();
        let ends: Vec<Var> = call.ends().collect();
        let body = self.sub_graph(graph_inputs, |writer| {
            let at = writer.graph.sub(last, step);
            let element =
                |(var, sequence): &(Var, OnnxValue)| (*var, writer.graph.op("Gather", &[*sequence, at], &[]));
            let recomputed: Vec<(Var, OnnxValue)> = forward.states.iter().map(element).collect();
            writer.step(call, &inputs, Some((forward, &recomputed)), &ends);
            Ok([going].into_iter().chain(writer.next_states(call, &states)?).collect())
        })?;
        let node_inputs = [Some(count), None].into_iter().chain(firsts.into_iter().map(Some)).collect();
        let outputs = self.graph.node("Loop", node_inputs, &[], vec![("body", body)], states.len());
        self.set_last_states(call, &outputs);
        Ok(())
    }

    /// Steps over sequences; for the gradient of a recurrence, also over the states of its steps.
    fn scan(
        &mut self,
        op: &OpDesc,
        call: &BlockCall,
        reverse: bool,
        forward: Option<&ForwardSteps>,
    ) -> Result<()> {
        let values = self.graph.values.clone();
        let (mut scanned, mut recomputed, mut inputs) = (ScanInputs::default(), vec![], vec![]);
        if let Some(forward) = forward {
            for (start, sequence) in &forward.states {
                let element = self.typed(*sequence, forward.call.block, *start, *start)?;
                let element = scanned.element(&mut self.graph, *sequence, element.dtype, element.dims);
                recomputed.push((*start, element));
            }
            for (outer, inner, _) in &forward.call.slices {
                let Some(sequence) = forward.values.get(outer) else { continue };
                recomputed.push((*inner, self.slice(&mut scanned, *sequence, *outer)?));
            }
        }
        for (outer, inner, like) in &call.slices {
            let sequence = value_or_zeros(&mut self.graph, *outer, *like)?;
            inputs.push((*inner, self.slice(&mut scanned, sequence, *like)?));
        }
        let (firsts, states) = self.states(call)?;
        inputs.extend(call.carried.iter().zip(&states).map(|(carried, state)| (carried.start, state.value)));
        let saved = self.saved_states(call);
        let ends: Vec<Var> = call.ends().collect();
        let count = scanned.sequences.len();
        let body_inputs = states.iter().chain(&scanned.elements).cloned().collect();
        let body = self.sub_graph(body_inputs, |writer| {
            writer.step(call, &inputs, forward.map(|forward| (forward, &recomputed[..])), &ends);
            let mut outputs = writer.next_states(call, &states)?;
            for (inner, outer) in &call.stacks {
                let value = writer.graph.read(*inner)?;
                outputs.push(writer.typed(value, call.block, *inner, *outer)?);
            }
            outputs.extend(starts_of(&saved, call, &states));
            Ok(outputs)
        })?;
        let direction = i64::from(reverse);
        let stacks = call.stacks.len() + saved.len();
        let (input_directions, output_directions) = (vec![direction; count], vec![direction; stacks]);
        let attrs = [
            ("num_scan_inputs", NodeAttr::Int(count as i64)),
            ("scan_input_directions", NodeAttr::Ints(&input_directions)),
            ("scan_output_directions", NodeAttr::Ints(&output_directions)),
        ];
        let attrs = if reverse { &attrs[..] } else { &attrs[..1] };
        let node_inputs = firsts.into_iter().chain(scanned.sequences).map(Some).collect();
        let total = states.len() + stacks;
        let outputs = self.graph.node("Scan", node_inputs, attrs, vec![("body", body)], total);
        self.set_last_states(call, &outputs);
        for ((_, outer), value) in call.stacks.iter().zip(&outputs[states.len()..]) {
            self.graph.write(*outer, *value);
        }
        let sequences = outputs[total - saved.len()..].iter().copied();
        self.save(op, call, values, None, saved.into_iter().zip(sequences).collect());
        Ok(())
    }

    /// The current element of a sequence with the type of a variable.
    fn slice(&mut self, scanned: &mut ScanInputs, sequence: OnnxValue, var: Var) -> Result<OnnxValue> {
        let TypedValue { dtype, dims, .. } = typed(&self.graph, sequence, var)?;
        let dims: Dims = dims.iter().skip(1).copied().collect();
        Ok(scanned.element(&mut self.graph, sequence, dtype, dims))
    }
}

/// The inputs of a step that hold states.
fn starts_of(vars: &[Var], call: &BlockCall, states: &[TypedValue]) -> Vec<TypedValue> {
    let start = |var: &Var| call.carried.iter().position(|carried| carried.start == *var);
    vars.iter().filter_map(|var| states.get(start(var)?).cloned()).collect()
}
