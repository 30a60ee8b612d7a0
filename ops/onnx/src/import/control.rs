//! `If`, `Loop` and `Scan`.

use std::cell::RefCell;

use autobwd::{Expr, Result, Tensor, tensor::Bool};
use autobwd_ops::{Math, concat, control::cond};

use super::{
    Importer,
    node::{NodeContext, NodeOutput, Outputs, refuse},
    rules::{All, Rules},
    value::{ImportedValue, ValueContent},
};
use crate::{elements::ElementType, proto::GraphProto};

pub(super) const RULES: Rules = &[("If", All, choice), ("Loop", All, repeat), ("Scan", All, scan)];

/// The most steps of a loop that are written one after another.
const STEPS: usize = 1024;

/// A branch; both, if the condition is not known.
fn choice(n: &mut NodeContext<'_, '_>) -> Outputs {
    let (yes, no) = (n.graph("then_branch")?, n.graph("else_branch")?);
    let values = |values: Vec<ImportedValue>| values.into_iter().map(NodeOutput::Value).collect();
    if let Some(condition) = n.required(0)?.tensor() {
        let holds = condition.to_f64s().first().is_some_and(|x| *x != 0.0);
        return n.importer.graph(if holds { yes } else { no }, vec![]).map(values);
    }
    let condition = n.input(0)?;
    let importer = RefCell::new(&mut *n.importer);
    let (types, failed) = (RefCell::new(vec![]), RefCell::new(None));
    let branch = |graph: &GraphProto| {
        let mut importer = importer.borrow_mut();
        let results = importer.graph(graph, vec![]).and_then(|values| importer.exprs(values));
        match results {
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
    let sources = n.required(0)?.sources.clone();
    let elements = types.first().cloned().unwrap_or_default();
    if types.iter().any(|other| *other != elements) {
        return Err(refuse("operator `If`: the branches have results of different types"));
    }
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
    fn exprs(&mut self, values: Vec<ImportedValue>) -> Result<(Vec<Expr>, Vec<ElementType>)> {
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
            ValueContent::Known(known) => self.materialize(&value.name, known),
        }
    }
}

/// A constant of a loop.
fn constant(element: ElementType, tensor: Tensor) -> ImportedValue {
    ImportedValue::known("", element, tensor, false)
}

/// A loop whose number of steps is known is written step by step, another one without sequences becomes a `while`.
fn repeat(n: &mut NodeContext<'_, '_>) -> Outputs {
    let body = n.graph("body")?;
    let steps = match n.value(0) {
        None => None,
        Some(_) => n.constant_ints(0)?.and_then(|n| n.first().copied()),
    };
    let begins = match n.value(1).map(|value| value.tensor().cloned()) {
        None => true,
        Some(Some(condition)) => condition.to_f64s().first().is_some_and(|x| *x != 0.0),
        Some(None) => {
            n.constant(1)?;
            true
        }
    };
    let carried: Vec<Option<ImportedValue>> = n.inputs.iter().skip(2).cloned().collect();
    let count = carried.len();
    if body.input.len() != count + 2 || body.output.len() <= count {
        return Err(refuse("operator `Loop`: its body has other inputs or outputs"));
    }
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
        let condition = outputs.next().and_then(|value| value.tensor().cloned());
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

/// A scan over sequences of known length is written step by step.
fn scan(n: &mut NodeContext<'_, '_>) -> Outputs {
    if n.version() < 9 {
        return scan_of_batch(n);
    }
    let body = n.graph("body")?;
    let count = n.int("num_scan_inputs")?.and_then(|n| usize::try_from(n).ok());
    let count = count.filter(|count| *count > 0 && *count <= n.input_count());
    let count = count.ok_or_else(|| refuse("attribute `num_scan_inputs` of operator `Scan`"))?;
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
    let mut sequences = vec![];
    let mut length = None;
    for (i, axis) in axes.iter().enumerate() {
        let axis = n.axis(states + i, *axis)?;
        let dim = n.dims(states + i)?[axis].get();
        let dim = dim.ok_or_else(|| refuse("operator `Scan` needs sequences of known length"))?;
        if length.is_some_and(|length| length != dim) || dim > STEPS || dim == 0 {
            return Err(refuse(format!("operator `Scan` over {dim} elements is not supported")));
        }
        length = Some(dim);
        let element = n.element(states + i)?;
        let x = n.input(states + i)?;
        let mut steps = autobwd::emit(autobwd_ops::shape::Unbind {
            x: (&x).into(),
            out: (0..dim).map(|_| autobwd::New).collect(),
            axis: axis as i32,
        })
        .out;
        if directions[i] == 1 {
            steps.reverse();
        }
        sequences.push((element, steps));
    }
    let mut carried: Vec<Option<ImportedValue>> = n.inputs[..states].to_vec();
    let mut scanned: Vec<Vec<ImportedValue>> = vec![vec![]; scans];
    for step in 0..length.unwrap_or(0) {
        let elements = sequences.iter().map(|(element, steps)| {
            Some(ImportedValue {
                sources: std::rc::Rc::default(),
                ..ImportedValue::computed("", *element, steps[step].clone())
            })
        });
        let inputs = carried.drain(..).chain(elements).collect();
        let mut outputs = n.importer.graph(body, inputs)?.into_iter();
        carried.extend(outputs.by_ref().take(states).map(Some));
        scanned.iter_mut().zip(outputs).for_each(|(list, value)| list.push(value));
    }
    let mut outputs: Vec<NodeOutput> = carried.into_iter().flatten().map(NodeOutput::Value).collect();
    for (i, mut list) in scanned.into_iter().enumerate() {
        if out_directions[i] == 1 {
            list.reverse();
        }
        let rank = list.first().map_or(0, |value| value.dims().len() as i64) + 1;
        let axis = if out_axes[i] < 0 { out_axes[i] + rank } else { out_axes[i] };
        if !(0..rank).contains(&axis) {
            return Err(refuse("attribute `scan_output_axes` of operator `Scan`"));
        }
        outputs.push(stacked(n, list, axis as usize)?);
    }
    Ok(outputs)
}

/// The form of version 8, with a batch dimension first.
fn scan_of_batch(n: &mut NodeContext<'_, '_>) -> Outputs {
    Err(refuse(format!("operator `Scan` of version {} is not supported", n.version())))
}
