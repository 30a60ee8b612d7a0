//! `Loop` as `while`, and `Scan` as `recurrent`, for numbers of steps that are not known.

use std::collections::HashSet;

use autobwd::{Expr, New, Result, Tensor, tensor::Bool};
use autobwd_ops::{
    Math, concat,
    control::{dynamic_dims, static_rnn, while_loop},
    fill::FillConstant,
};

use super::{
    Importer,
    arith::{int_like, permute, reshape},
    node::{NodeContext, NodeOutput, Outputs, give, refuse},
    options::dimension_text,
    rules::sources,
    value::{ImportedValue, Sources},
};
use crate::{
    elements::ElementType,
    proto::{GraphProto, ValueInfoProto, type_proto},
};

/// Whether the condition of a loop is known before each step if the first values of these states are.
pub(super) fn has_known_condition(importer: &Importer<'_>, body: &GraphProto, mut states: Vec<bool>) -> bool {
    loop {
        let state = |i: usize| i.checked_sub(2).is_none_or(|i| states.get(i).copied().unwrap_or(false));
        let inputs = body.input.iter().map(|input| input.name());
        let unknown: HashSet<&str> =
            inputs.enumerate().filter(|(i, _)| !state(*i)).map(|(_, name)| name).collect();
        let is_known = known_outputs(importer, body, unknown);
        let next: Vec<bool> = states.iter().zip(&is_known[1..]).map(|(a, b)| *a && *b).collect();
        if !is_known[0] || next == states {
            return is_known[0];
        }
        states = next;
    }
}

/// Which outputs of a graph can be computed when it is imported, if these inputs of it are not known. Its parameters are
/// not known either.
fn known_outputs<'g>(
    importer: &Importer<'_>,
    graph: &'g GraphProto,
    mut unknown: HashSet<&'g str>,
) -> Vec<bool> {
    let own = graph.input.iter().map(|input| input.name());
    let own = own.chain(graph.initializer.iter().map(|initializer| initializer.name()));
    let own: HashSet<&str> =
        own.chain(graph.node.iter().flat_map(|node| &node.output).map(String::as_str)).collect();
    let parameters = graph.initializer.iter().filter(|message| importer.is_parameter(message));
    unknown.extend(parameters.map(|message| message.name()));
    let is_known = |name: &str, unknown: &HashSet<&str>| {
        let outer = || matches!(importer.lookup(name), Some(Some(value)) if value.constant().is_some());
        name.is_empty() || if own.contains(name) { !unknown.contains(name) } else { outer() }
    };
    for node in &graph.node {
        let has_graph = node.attribute.iter().any(|attribute| attribute.g.is_some());
        if has_graph || !node.input.iter().all(|name| is_known(name, &unknown)) {
            unknown.extend(node.output.iter().map(String::as_str));
        }
    }
    graph.output.iter().map(|output| is_known(output.name(), &unknown)).collect()
}

/// The graph of a step, with the types of its states and what it depends on.
struct StepGraph<'g> {
    op: &'g str,
    graph: &'g GraphProto,
    states: Vec<ElementType>,
    sources: Sources,
    /// The types of the other results, from the last import.
    results: Vec<ElementType>,
    failed: Option<autobwd::Error>,
}

impl StepGraph<'_> {
    /// Imports a step; returns its results, none if that fails.
    fn import(
        &mut self,
        importer: &mut Importer<'_>,
        inputs: Vec<(ElementType, Expr)>,
        skip: usize,
    ) -> Vec<Expr> {
        match self.results(importer, inputs, skip) {
            Ok(results) => results,
            Err(e) => {
                self.failed.get_or_insert(e);
                vec![]
            }
        }
    }

    /// `skip` results come before the states.
    fn results(
        &mut self,
        importer: &mut Importer<'_>,
        inputs: Vec<(ElementType, Expr)>,
        skip: usize,
    ) -> Result<Vec<Expr>> {
        let value = |(element, expr)| {
            let sources = self.sources.clone();
            Some(ImportedValue { sources, ..ImportedValue::computed("", element, expr) })
        };
        let outputs = importer.graph(self.graph, inputs.into_iter().map(value).collect())?;
        let (results, elements) = importer.exprs(outputs)?;
        let states = elements.iter().skip(skip).zip(&self.states);
        if states.clone().any(|(after, before)| after != before) {
            return Err(refuse(format!("operator `{}` changes the type of a state", self.op)));
        }
        self.results = elements[skip + self.states.len()..].to_vec();
        Ok(results)
    }

    /// The outputs of the node: states, then sequences.
    fn outputs(self, exprs: impl Iterator<Item = Expr>) -> Outputs {
        if let Some(e) = self.failed {
            return Err(e);
        }
        let elements = self.states.iter().chain(&self.results);
        let value = |(expr, element): (Expr, &ElementType)| {
            expr.check()?;
            let sources = self.sources.clone();
            Ok(NodeOutput::Value(ImportedValue { sources, ..ImportedValue::computed("", *element, expr) }))
        };
        exprs.zip(elements).map(value).collect()
    }
}

/// A scalar, which files may have with one dimension.
fn scalar(x: Expr) -> Expr {
    if x.dims().is_empty() { x } else { reshape(&x, &[]) }
}

/// Zeros without elements along the first axis, to which steps append their results.
fn empty_sequence(n: &NodeContext<'_, '_>, graph: &GraphProto, output: usize) -> Result<Expr> {
    let output = &graph.output[output];
    let declared = n.importer.tensor_type(output).ok().filter(|(_, dims)| dims.known().is_some());
    let (element, dims) = declared.ok_or_else(|| {
        let unknown = [0, 1].into_iter().filter_map(|i| n.value(i)).find(|value| value.tensor().is_none());
        let (name, give) = (output.name(), unknown.map_or(String::new(), |value| give("values", value)));
        refuse(format!("operator `Loop` needs the declared shape of `{name}`, which its steps return{give}"))
    })?;
    let shape = [0].into_iter().chain(dims.iter().map(|dim| dim.wire())).collect();
    let dtype = n.importer.dtype(element)?;
    let empty = n.net().emit(FillConstant { shape, dtype, ..FillConstant::of(New) }).out;
    Ok(dynamic_dims(empty.check()?, &[0]))
}

/// A state, or a copy if a step changes its dimensions, as the graph declares: by other names before and after it.
fn varying(graph: &GraphProto, input: usize, state: &Expr) -> Expr {
    let [before, after] = [&graph.input[input], &graph.output[input - 1]].map(symbols);
    let dims = state.dims();
    if [before.len(), after.len()] != [dims.len(); 2] {
        return state.clone();
    }
    let changes = |axis: &usize| before[*axis] != after[*axis] && dims[*axis].get().is_some();
    let axes: Vec<i32> = (0..dims.len()).filter(changes).map(|axis| axis as i32).collect();
    if axes.is_empty() { state.clone() } else { dynamic_dims(state, &axes) }
}

/// The dimensions of a declared value as text.
fn symbols(info: &ValueInfoProto) -> Vec<String> {
    match info.r#type.as_ref().and_then(|ty| ty.value.as_ref()) {
        Some(type_proto::Value::TensorType(tensor)) => {
            tensor.shape.iter().flat_map(|shape| &shape.dim).map(dimension_text).collect()
        }
        _ => vec![],
    }
}

/// A loop whose number of steps is not known, with so many states.
pub(super) fn looped(n: &mut NodeContext<'_, '_>, graph: &GraphProto, count: usize) -> Outputs {
    let (limit, begins) = (n.optional(0)?.map(scalar), n.optional(1)?.map(scalar));
    let begins = match begins {
        Some(begins) => begins,
        None => n.tensor_expr(&Tensor::scalar(Bool::from(true))?)?,
    };
    let mut first = vec![n.tensor_expr(&Tensor::scalar(0_i64)?)?, begins];
    let mut states = vec![];
    for i in 2..count + 2 {
        states.push(n.element(i)?);
        let state = n.input(i)?;
        first.push(varying(graph, i, &state));
    }
    for output in count + 1..graph.output.len() {
        first.push(empty_sequence(n, graph, output)?);
    }
    let sources = sources(&n.inputs);
    let mut step = StepGraph { op: n.op(), graph, states, sources, results: vec![], failed: None };
    let last = while_loop(
        &first,
        |v| match &limit {
            Some(limit) => v[0].less_than(limit).logical_and(&v[1]),
            None => v[1].clone(),
        },
        |v| {
            let elements = [ElementType::I64, ElementType::BOOL].into_iter().chain(step.states.clone());
            let inputs = elements.zip(v.iter().cloned()).collect();
            let mut results = step.import(n.importer, inputs, 1).into_iter();
            let condition = results.next().map(scalar);
            let mut next: Vec<Expr> = [&v[0] + int_like(&v[0], 1)].into_iter().chain(condition).collect();
            next.extend(results.by_ref().take(count));
            let sequences = results.zip(&v[count + 2..]);
            next.extend(sequences.map(|(result, so_far)| concat(&[so_far, &result.unsqueeze(&[0])], 0)));
            next
        },
    );
    step.outputs(last.into_iter().skip(2))
}

/// A sequence that `Scan` reads or writes.
pub(super) struct ScanSequence {
    pub(super) axis: usize,
    /// From the last element to the first.
    pub(super) reverse: bool,
}

impl ScanSequence {
    /// A sequence with time first, as recurrences have it, from one of the file (`false`), or the other way round.
    fn convert(&self, x: &Expr, back: bool, reverse: bool) -> Expr {
        let rank = x.dims().len();
        let mut axes: Vec<usize> = (0..rank).collect();
        match back {
            false => axes[..=self.axis].rotate_right(1),
            true => axes[..=self.axis].rotate_left(1),
        }
        let x = if self.reverse == reverse {
            x.clone()
        } else {
            x.flip(&[if back { 0 } else { self.axis as i32 }])
        };
        if self.axis == 0 { x } else { permute(&x, &axes) }
    }
}

/// A scan over sequences of any length; `outputs` are a position from the end or the start, and a direction.
pub(super) fn recurrent(
    n: &mut NodeContext<'_, '_>,
    graph: &GraphProto,
    inputs: &[ScanSequence],
    outputs: &[(i64, bool)],
) -> Outputs {
    let (net, count) = (n.net(), n.input_count() - inputs.len());
    let reverse = inputs.first().is_some_and(|sequence| sequence.reverse);
    let (mut states, mut first, mut elements, mut sequences) = (vec![], vec![], vec![], vec![]);
    for i in 0..count {
        states.push(n.element(i)?);
        first.push(n.input(i)?);
    }
    for (i, sequence) in inputs.iter().enumerate() {
        elements.push(n.element(count + i)?);
        sequences.push(sequence.convert(&n.input(count + i)?, false, reverse));
    }
    let sources = sources(&n.inputs);
    let mut step = StepGraph { op: n.op(), graph, states, sources, results: vec![], failed: None };
    let results = static_rnn(&net, reverse, |rnn| {
        let before: Vec<Expr> = first.iter().map(|first| rnn.memory(first)).collect();
        let current: Vec<Expr> = sequences.iter().map(|sequence| rnn.step_input(sequence)).collect();
        let types = step.states.iter().chain(&elements).copied();
        let values = types.zip(before.iter().chain(&current).cloned()).collect();
        let mut results = step.import(n.importer, values, 0).into_iter();
        for (memory, next) in before.iter().zip(results.by_ref()) {
            rnn.update_memory(memory, &next);
            rnn.last_output(memory);
        }
        results.for_each(|result| rnn.step_output(&result));
    });
    if step.failed.is_some() {
        return step.outputs(results.into_iter());
    }
    let (stacked, last) = results.split_at(results.len().saturating_sub(count));
    let mut all = last.to_vec();
    for (stack, (axis, output_reverse)) in stacked.iter().zip(outputs) {
        let dims = stack.check()?.dims();
        let axis = dims
            .axis(*axis)
            .ok_or_else(|| refuse("attribute `scan_output_axes` of operator `Scan` is missing or invalid"))?;
        all.push(ScanSequence { axis, reverse: *output_reverse }.convert(stack, true, reverse));
    }
    step.outputs(all.into_iter())
}
