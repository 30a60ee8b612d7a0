//! `If`, `Loop` and `Scan`.

use std::cell::RefCell;

use autobwd::{Expr, Result, Tensor, tensor::Bool};
use autobwd_ops::{Math, concat, control::cond, shape::Unbind};

use super::{
    Importer,
    node::{NodeContext, NodeOutput, Outputs, refuse},
    rules::{All, NodeRules, sources},
    value::{ImportedValue, ValueContent},
    while_loop::{ScanSequence, has_known_condition, looped, recurrent},
};
use crate::{elements::ElementType, proto::GraphProto};

pub(super) const RULES: NodeRules = &[("If", All, choice), ("Loop", All, repeat), ("Scan", All, scan)];

/// The most steps of a loop that are written one after another.
const STEPS: usize = 1024;

/// A branch; both, if the condition is not known.
fn choice(n: &mut NodeContext<'_, '_>) -> Outputs {
    let (yes, no) = (n.graph("then_branch")?, n.graph("else_branch")?);
    let values = |values: Vec<ImportedValue>| values.into_iter().map(NodeOutput::Value).collect();
    if let Some(condition) = n.required(0)?.constant() {
        let holds = condition.to_f64s().first().is_some_and(|x| *x != 0.0);
        return n.importer.graph(if holds { yes } else { no }, vec![]).map(values);
    }
    let condition = n.input(0)?;
    let importer = RefCell::new(&mut *n.importer);
    let (types, failed) = (RefCell::new(vec![]), RefCell::new(None));
    // The results depend on the condition and on what the branches compute.
    let depends = RefCell::new(n.inputs.clone());
    let branch = |graph: &GraphProto| {
        let mut importer = importer.borrow_mut();
        let values = importer.graph(graph, vec![]);
        depends.borrow_mut().extend(values.iter().flatten().cloned().map(Some));
        match values.and_then(|values| importer.exprs(values)) {
            Ok((exprs, elements)) => {
                types.borrow_mut().push(elements);
                exprs
            }
            Err(e) => {
                failed.borrow_mut().get_or_insert(e);
                vec![]
            }
        }
    };
    let chosen = cond(&condition, || branch(yes), || branch(no));
    if let Some(e) = failed.into_inner() {
        return Err(e);
    }
    chosen.iter().try_for_each(|expr| expr.check().map(drop))?;
    let types = types.into_inner();
    let elements = types.first().cloned().unwrap_or_default();
    if types.iter().any(|other| *other != elements) {
        return Err(refuse("operator `If`: the branches have results of different types"));
    }
    let sources = sources(&depends.into_inner());
    let value = |(expr, element)| {
        NodeOutput::Value(ImportedValue {
            sources: sources.clone(),
            ..ImportedValue::computed("", element, expr)
        })
    };
    Ok(chosen.into_iter().zip(elements).map(value).collect())
}

impl Importer<'_> {
    /// The values of a graph as expressions, with their types.
    pub(super) fn exprs(&mut self, values: Vec<ImportedValue>) -> Result<(Vec<Expr>, Vec<ElementType>)> {
        let (mut exprs, mut elements) = (vec![], vec![]);
        for value in values {
            elements.push(value.element);
            exprs.push(self.value_expr(&value)?);
        }
        Ok((exprs, elements))
    }

    /// A value as an expression of the current block.
    pub(super) fn value_expr(&mut self, value: &ImportedValue) -> Result<Expr> {
        match &value.content {
            ValueContent::Computed(expr) => Ok(expr.clone()),
            ValueContent::Sizes(sizes) => self.emit_sizes(sizes),
            ValueContent::Sequence(_) => Err(refuse("a sequence of tensors is not supported here")),
            ValueContent::Known(known) => self.materialize(&value.name, known),
        }
    }
}

/// A constant of a loop.
fn constant(element: ElementType, tensor: Tensor) -> ImportedValue {
    ImportedValue::known("", element, tensor, false)
}

/// A loop whose number of steps is known is written step by step, another one becomes a `while`.
fn repeat(n: &mut NodeContext<'_, '_>) -> Outputs {
    let body = n.graph("body")?;
    let carried: Vec<Option<ImportedValue>> = n.inputs.iter().skip(2).cloned().collect();
    let count = carried.len();
    if body.input.len() != count + 2 || body.output.len() <= count {
        return Err(refuse("operator `Loop`: its body has other inputs or outputs"));
    }
    let is_known = |value: Option<&ImportedValue>| value.is_none_or(|value| value.constant().is_some());
    let states: Vec<bool> = carried.iter().map(|state| is_known(state.as_ref())).collect();
    let known = is_known(n.value(0)) && is_known(n.value(1));
    let steps = if known { n.constant_ints(0)?.and_then(|n| n.first().copied()) } else { None };
    let many = steps.is_some_and(|steps| steps > STEPS as i64);
    if !known || many || !has_known_condition(n.importer, body, states) {
        return looped(n, body, count);
    }
    let begins = n.constant(1)?.is_none_or(|holds| holds.to_f64s().first().is_some_and(|x| *x != 0.0));
    unrolled(n, body, steps, begins, carried)
}

fn unrolled(
    n: &mut NodeContext<'_, '_>,
    body: &GraphProto,
    steps: Option<i64>,
    begins: bool,
    mut carried: Vec<Option<ImportedValue>>,
) -> Outputs {
    let count = carried.len();
    let mut scanned: Vec<Vec<ImportedValue>> = vec![vec![]; body.output.len() - count - 1];
    let (mut step, mut again) = (0, begins);
    while again && steps.is_none_or(|steps| step < steps) {
        if step as usize >= STEPS {
            return Err(refuse(format!("operator `Loop` of more than {STEPS} steps is not supported")));
        }
        let at = constant(ElementType::I64, Tensor::scalar(step)?);
        let going = constant(ElementType::BOOL, Tensor::scalar(Bool::from(true))?);
        let inputs = [Some(at), Some(going)].into_iter().chain(carried.drain(..)).collect();
        let mut outputs = n.importer.graph(body, inputs)?.into_iter();
        let condition = outputs.next().and_then(|value| value.constant().cloned());
        let condition = condition
            .ok_or_else(|| refuse("operator `Loop` needs a condition that is known when it is imported"))?;
        again = condition.to_f64s().first().is_some_and(|x| *x != 0.0);
        carried.extend(outputs.by_ref().take(count).map(Some));
        scanned.iter_mut().zip(outputs).for_each(|(list, value)| list.push(value));
        step += 1;
    }
    let carried =
        carried.into_iter().map(|value| value.ok_or_else(|| refuse("operator `Loop` without a state")));
    let mut outputs = carried.map(|value| Ok(NodeOutput::Value(value?))).collect::<Result<Vec<_>>>()?;
    for list in scanned {
        outputs.push(stacked(n, list, 0)?);
    }
    Ok(outputs)
}

/// The elements along a new axis.
fn stacked(n: &mut NodeContext<'_, '_>, elements: Vec<ImportedValue>, axis: usize) -> Result<NodeOutput> {
    let Some(element) = elements.first().map(|value| value.element) else {
        return Err(refuse(format!("operator `{}` without a step is not supported", n.op())));
    };
    let exprs = elements
        .iter()
        .map(|value| Ok(n.expr(value)?.unsqueeze(&[axis as i32])))
        .collect::<Result<Vec<_>>>()?;
    let parts: Vec<&Expr> = exprs.iter().collect();
    let expr = concat(&parts, axis as i32);
    expr.check()?;
    Ok(NodeOutput::Value(ImportedValue::computed("", element, expr)))
}

/// A scan becomes a recurrence, unless it has known integers as states: shapes may depend on them. Then it is written
/// step by step.
fn scan(n: &mut NodeContext<'_, '_>) -> Outputs {
    if n.version() < 9 {
        return scan_of_batch(n);
    }
    let body = n.graph("body")?;
    let count = n.int("num_scan_inputs")?.and_then(|n| usize::try_from(n).ok());
    let count = count.filter(|count| *count > 0 && *count <= n.input_count());
    let count = count
        .ok_or_else(|| refuse("attribute `num_scan_inputs` of operator `Scan` is missing or invalid"))?;
    let states = n.input_count() - count;
    if body.output.len() < states {
        return Err(refuse("operator `Scan`: its body has fewer outputs than states"));
    }
    let scans = body.output.len() - states;
    let option = |list: Option<Vec<i64>>, len: usize| {
        list.filter(|list| list.len() == len).unwrap_or_else(|| vec![0; len])
    };
    let directions = option(n.ints("scan_input_directions")?, count);
    let axes = option(n.ints("scan_input_axes")?, count);
    let out_directions = option(n.ints("scan_output_directions")?, scans);
    let out_axes = option(n.ints("scan_output_axes")?, scans);
    let mut inputs = vec![];
    for (i, axis) in axes.iter().enumerate() {
        inputs.push(ScanSequence { axis: n.axis(states + i, *axis)?, reverse: directions[i] == 1 });
    }
    let outputs: Vec<(i64, bool)> =
        out_axes.into_iter().zip(out_directions).map(|(axis, direction)| (axis, direction == 1)).collect();
    let length = n.dims(states)?[inputs[0].axis].get().filter(|length| (1..=STEPS).contains(length));
    let is_integer = |state: &ImportedValue| state.constant().is_some_and(|x| !x.dtype().is_float());
    match length.filter(|_| n.inputs[..states].iter().flatten().any(is_integer)) {
        Some(length) => unrolled_scan(n, body, &inputs, &outputs, length),
        None => recurrent(n, body, &inputs, &outputs),
    }
}

fn unrolled_scan(
    n: &mut NodeContext<'_, '_>,
    body: &GraphProto,
    inputs: &[ScanSequence],
    outputs: &[(i64, bool)],
    length: usize,
) -> Outputs {
    let states = n.input_count() - inputs.len();
    let mut sequences = vec![];
    for (i, ScanSequence { axis, reverse }) in inputs.iter().enumerate() {
        if n.dims(states + i)?[*axis].get() != Some(length) {
            return Err(refuse("operator `Scan`: its sequences have different lengths"));
        }
        let x = n.input(states + i)?;
        let out = (0..length).map(|_| autobwd::New).collect();
        let mut steps = autobwd::emit(Unbind { x: (&x).into(), out, axis: *axis as i32 }).out;
        if *reverse {
            steps.reverse();
        }
        sequences.push((n.element(states + i)?, steps));
    }
    let mut carried: Vec<Option<ImportedValue>> = n.inputs[..states].to_vec();
    let mut scanned: Vec<Vec<ImportedValue>> = vec![vec![]; outputs.len()];
    for step in 0..length {
        let elements = sequences
            .iter()
            .map(|(element, steps)| Some(ImportedValue::computed("", *element, steps[step].clone())));
        let inputs = carried.drain(..).chain(elements).collect();
        let mut outputs = n.importer.graph(body, inputs)?.into_iter();
        carried.extend(outputs.by_ref().take(states).map(Some));
        scanned.iter_mut().zip(outputs).for_each(|(list, value)| list.push(value));
    }
    let mut all: Vec<NodeOutput> = carried.into_iter().flatten().map(NodeOutput::Value).collect();
    for (mut list, (axis, reverse)) in scanned.into_iter().zip(outputs) {
        if *reverse {
            list.reverse();
        }
        let rank = list.first().map_or(0, |value| value.dims().len() as i64) + 1;
        let axis = if *axis < 0 { axis + rank } else { *axis };
        if !(0..rank).contains(&axis) {
            return Err(refuse("attribute `scan_output_axes` of operator `Scan` is missing or invalid"));
        }
        all.push(stacked(n, list, axis as usize)?);
    }
    Ok(all)
}

/// The form of version 8, with a batch dimension first.
fn scan_of_batch(n: &mut NodeContext<'_, '_>) -> Outputs {
    Err(refuse(format!("operator `Scan` of version {} is not supported", n.version())))
}
