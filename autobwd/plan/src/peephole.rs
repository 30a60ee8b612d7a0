//! Peephole patterns: registered pairs of operators are replaced by one.
//!
//! The gradient of a weight and the optimizer step that consumes it are such a pair.

use rustc_hash::FxHashMap;

use crate::value_graph::{Graph, Instruction, ValueId, ValueSource, Wires, scratch_values, wires};
use autobwd_core::{__private::internals::*, Error, ErrorKind, Meta, OpDesc, OpInfoMap, Result, Var};

/// Replaces registered pairs in which the second operator is the only reader of the first one's output. An operator is
/// part of at most one pair.
pub(super) fn join(graph: &mut Graph, ops: &OpInfoMap) -> Result<()> {
    if ops.peepholes().is_empty() {
        return Ok(());
    }
    let mut readers = vec![0; graph.values.len()];
    let read = graph.instructions.iter().flat_map(|n| &n.inputs).filter_map(|(_, v)| *v);
    read.chain(graph.fetches.iter().copied()).for_each(|v| readers[v] += 1);
    let touched = touched(graph);
    let mut gone = vec![false; graph.instructions.len()];
    let mut taken = gone.clone();
    for at in 0..graph.instructions.len() {
        let Some((first, node)) = partner(graph, ops, at, &readers, &taken, &touched)? else { continue };
        let scratch = scratch_values(&mut graph.values, node.info, &node.inputs, &node.outputs);
        graph.instructions[first] = Instruction { scratch, ..node };
        (taken[first], taken[at], gone[at]) = (true, true, true);
    }
    let mut gone = gone.into_iter();
    graph.instructions.retain(|_| gone.next() == Some(false));
    graph.index_writers();
    Ok(())
}

/// The predecessor that an operator can be joined with, and the operator that replaces both.
fn partner(
    graph: &Graph,
    ops: &OpInfoMap,
    at: usize,
    readers: &[usize],
    taken: &[bool],
    touched: &FxHashMap<Var, Vec<usize>>,
) -> Result<Option<(usize, Instruction)>> {
    let then = &graph.instructions[at];
    let whole = |n: &Instruction| {
        n.inputs.iter().chain(&n.outputs).all(|(_, v)| v.is_none_or(|v| graph.is_whole_tensor(v)))
    };
    // One operator would not round a result of 16 bits that two operators hand over.
    let hands_over = |v: &ValueId| {
        readers[*v] == 1 && !graph.values[*v].in_scope && !graph.values[*v].meta.dtype.is_half()
    };
    for value in then.reads().filter(hands_over) {
        let ValueSource::Instruction(first) = graph.values[value].source else { continue };
        let before = &graph.instructions[first];
        let types = (before.info.schema().name, then.info.schema().name);
        let Some(join) = ops.peepholes().get(&types).filter(|_| !taken[first] && !taken[at]) else {
            continue;
        };
        if !whole(before) || !whole(then) || !can_run_at(graph, first, at, value, touched) {
            continue;
        }
        if let Some(desc) = join(&before.desc, &then.desc)? {
            return Ok(Some((first, replacement(graph, ops, before, then, &desc)?)));
        }
    }
    Ok(None)
}

/// Positions of reads and writes of the scope's variables, in order.
fn touched(graph: &Graph) -> FxHashMap<Var, Vec<usize>> {
    let mut touched: FxHashMap<Var, Vec<usize>> = FxHashMap::default();
    for (at, node) in graph.instructions.iter().enumerate() {
        for value in node.reads().chain(node.writes()).filter(|v| graph.values[*v].in_scope) {
            touched.entry(graph.values[value].var).or_default().push(at);
        }
    }
    touched
}

/// Whether the second operator can run at the position of the first: its other inputs exist there, and no operator in
/// between reads or writes its in-place outputs.
fn can_run_at(
    graph: &Graph,
    first: usize,
    at: usize,
    handed: ValueId,
    touched: &FxHashMap<Var, Vec<usize>>,
) -> bool {
    let then = &graph.instructions[at];
    let there = |v: ValueId| match graph.values[v].source {
        ValueSource::Instruction(writer) => writer < first,
        _ => true,
    };
    let between = |v: ValueId| {
        let all = touched.get(&graph.values[v].var).map_or(&[][..], Vec::as_slice);
        all.get(all.partition_point(|other| *other <= first)).is_some_and(|other| *other < at)
    };
    then.reads().all(|v| v == handed || there(v))
        && !then.writes().any(|v| graph.values[v].in_scope && between(v))
}

/// The replacement, on the values of both.
fn replacement(
    graph: &Graph,
    ops: &OpInfoMap,
    first: &Instruction,
    then: &Instruction,
    desc: &OpDesc,
) -> Result<Instruction> {
    let info = ops.get(&desc.ty)?;
    info.check(desc)?;
    let find = |sides: [&Wires; 2], var: Var| {
        let mut values = sides.into_iter().flatten().filter_map(|(_, v)| *v);
        let unknown = || {
            let text = format!("`{}` has a slot that neither of the two replaced operators has", desc.ty);
            Error::new(ErrorKind::Operator, text)
        };
        values.find(|v| graph.values[*v].var == var).ok_or_else(unknown)
    };
    let schema = info.schema();
    let inputs = wires(schema.inputs, &desc.inputs, |var| find([&first.inputs, &then.inputs], var))?;
    let outputs = wires(schema.outputs, &desc.outputs, |var| find([&first.outputs, &then.outputs], var))?;
    fits(graph, desc, &inputs, &outputs, |of, put| info.infer(desc, of, put))?;
    let node = Instruction::new(first.index, desc, info, inputs, outputs);
    Ok(Instruction { in_composition: first.in_composition, ..node })
}

/// Rejects an operator whose shape rule contradicts the known shapes of its outputs.
fn fits(
    graph: &Graph,
    desc: &OpDesc,
    inputs: &Wires,
    outputs: &Wires,
    infer: impl FnOnce(&dyn Fn(Var) -> Result<Meta>, &mut dyn FnMut(Var, Meta)) -> Result<()>,
) -> Result<()> {
    let meta = |wires: &Wires, var: Var| {
        let mut known = wires.iter().filter_map(|(_, v)| Some(&graph.values[(*v)?]));
        known.find(|value| value.var == var).map(|value| value.meta.clone())
    };
    let wrong = || {
        let text = format!("`{}` is not equivalent to the two operators that it replaces", desc.ty);
        Error::new(ErrorKind::Operator, text)
    };
    let mut all_fit = true;
    let of = |var: Var| meta(inputs, var).ok_or_else(wrong);
    infer(&of, &mut |var, inferred| {
        all_fit &= meta(outputs, var).is_some_and(|known| {
            (known.dtype, &known.dims, known.rows) == (inferred.dtype, &inferred.dims, inferred.rows)
        });
    })?;
    if all_fit { Ok(()) } else { Err(wrong()) }
}
