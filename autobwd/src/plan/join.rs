//! Pairs of operators replaced by one.

use super::graph::{Graph, Node, Source, ValueId, Wires};
use crate::{Error, OpDesc, OpInfoMap, Result, SlotDef, Slots, Var};

/// Replaces pairs for which one operator is registered: the second is the only reader of what the first writes for it.
pub(super) fn join(graph: &mut Graph, ops: &OpInfoMap) -> Result<()> {
    if ops.joined().is_empty() {
        return Ok(());
    }
    let mut readers = vec![0; graph.values.len()];
    graph.nodes.iter().flat_map(|n| n.inputs.iter().filter_map(|(_, v)| *v)).for_each(|v| readers[v] += 1);
    graph.fetches.iter().for_each(|v| readers[*v] += 2);
    let mut replaced: Vec<(usize, usize, OpDesc)> = vec![];
    for (at, then) in graph.nodes.iter().enumerate() {
        for value in then.reads().filter(|v| readers[*v] == 1 && !graph.values[*v].kept) {
            let Source::Node(first) = graph.values[value].source else { continue };
            let types = (graph.nodes[first].info.schema().name, then.info.schema().name);
            let Some(join) = ops.joined().get(&types) else { continue };
            let whole = |n: &Node| {
                n.inputs.iter().chain(&n.outputs).all(|(_, v)| v.is_none_or(|v| graph.is_whole_tensor(v)))
            };
            let fits = whole(&graph.nodes[first]) && whole(then) && can_run_at(graph, first, at, value);
            if let Some(desc) =
                fits.then(|| join(&graph.nodes[first].desc, &then.desc)).transpose()?.flatten()
            {
                replaced.push((first, at, desc));
                break;
            }
        }
    }
    for (first, at, desc) in &replaced {
        let node = joined(graph, ops, *first, *at, desc)?;
        graph.nodes[*first] = node;
    }
    let gone: std::collections::HashSet<usize> = replaced.iter().map(|(_, at, _)| *at).collect();
    let mut position = 0..;
    graph.nodes.retain(|_| !position.next().is_some_and(|at| gone.contains(&at)));
    for (position, node) in graph.nodes.iter().enumerate() {
        node.writes().for_each(|v| graph.values[v].source = Source::Node(position));
    }
    Ok(())
}

/// Whether the second operator could as well run where the first one does: all else that it reads is there, and nobody
/// between them reads what it overwrites.
fn can_run_at(graph: &Graph, first: usize, at: usize, handed: ValueId) -> bool {
    let then = &graph.nodes[at];
    let there = |v: ValueId| match graph.values[v].source {
        Source::Node(writer) => writer < first,
        _ => true,
    };
    let overwritten = |v: ValueId| {
        let value = &graph.values[v];
        value.kept && then.writes().any(|w| graph.values[w].var == value.var)
    };
    then.reads().all(|v| v == handed || there(v))
        && graph.nodes[first + 1..at].iter().all(|n| !n.reads().chain(n.writes()).any(overwritten))
}

/// The one operator, on the values of both.
fn joined(graph: &Graph, ops: &OpInfoMap, first: usize, at: usize, desc: &OpDesc) -> Result<Node> {
    let (first, then) = (&graph.nodes[first], &graph.nodes[at]);
    let info = ops.get(&desc.ty)?;
    info.check(desc)?;
    let wires = |slots: &Slots, schema: &'static [SlotDef], of: &dyn Fn(Var) -> Option<ValueId>| {
        let mut wires = Wires::new();
        for slot in schema {
            for var in slots.get(slot.name) {
                let unknown = || Error::internal(format!("`{}` has a slot that neither of two has", desc.ty));
                let value = if *var == Var::EMPTY { None } else { Some(of(*var).ok_or_else(unknown)?) };
                wires.push((slot.name, value));
            }
        }
        Ok(wires)
    };
    let find = |sides: [&Wires; 2], var: Var| {
        let mut values = sides.into_iter().flatten().filter_map(|(_, v)| *v);
        values.find(|v| graph.values[*v].var == var)
    };
    let inputs = wires(&desc.inputs, info.schema().inputs, &|var| find([&first.inputs, &then.inputs], var))?;
    let outputs =
        wires(&desc.outputs, info.schema().outputs, &|var| find([&first.outputs, &then.outputs], var))?;
    Ok(Node { index: first.index, desc: desc.clone(), info, inputs, outputs, part: None })
}
