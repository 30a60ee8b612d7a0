//! Failures: which operators can fail for some data.

use rustc_hash::FxHashMap;

use crate::{
    fusion::extent,
    value_graph::{Graph, Instruction, ValueId, Wires},
};
use autobwd_core::{__private::internals::*, Meta, OpInfoMap, SlotDef};

/// By instruction: whether it can fail for some data.
///
/// An operator with `checked` inputs does not fail on elements that an earlier operator of its type, or its forward
/// operator, has accepted.
pub(super) fn may_fail(graph: &Graph, ops: &OpInfoMap) -> Vec<bool> {
    let mut accepted: FxHashMap<Vec<ValueId>, Vec<usize>> = FxHashMap::default();
    let mut may_fail = Vec::with_capacity(graph.instructions.len());
    for (position, node) in graph.instructions.iter().enumerate() {
        let mut fails = can_reject(graph, ops, node);
        if fails && node.part.is_none() {
            let checked = checked_values(node);
            if !checked.is_empty() {
                let before = accepted.entry(checked).or_default();
                fails = !before.iter().any(|earlier| accepts(graph, &graph.instructions[*earlier], node));
                before.push(position);
            }
        }
        may_fail.push(fails || allocates(graph, node));
    }
    may_fail
}

/// Whether its kernel rejects some data.
fn can_reject(graph: &Graph, ops: &OpInfoMap, node: &Instruction) -> bool {
    // Row indices that kernels write are checked.
    let writes_rows = node.writes().any(|value| graph.values[value].meta.rows.is_some());
    writes_rows || (ops.may_fail(&node.desc.ty) && !runs_by_formula(graph, node))
}

/// Whether it has no kernel for these values: formulas do not fail.
fn runs_by_formula(graph: &Graph, node: &Instruction) -> bool {
    let (info, _) = node.runs();
    info.lanes().is_some() && !info.has_kernel() && extent(graph, node).is_some()
}

/// Whether it takes memory when it runs: sub-blocks for saved step state, tensor arrays for their elements.
fn allocates(graph: &Graph, node: &Instruction) -> bool {
    let mut slots = node.inputs.iter().chain(&node.outputs).filter_map(|(_, value)| *value);
    node.sub_block.is_some() || slots.any(|value| graph.values[value].meta.array)
}

/// The values whose elements decide whether it fails; none if any may.
fn checked_values(node: &Instruction) -> Vec<ValueId> {
    let inputs = node.info.schema().inputs;
    let checked = node.inputs.iter().filter(|(slot, _)| slot.is_some_and(|slot| inputs[slot].checked));
    checked.filter_map(|(_, value)| *value).collect()
}

/// Whether what `node` checks is what `earlier`, with the same checked values, has accepted.
fn accepts(graph: &Graph, earlier: &Instruction, node: &Instruction) -> bool {
    let (of_earlier, of_node) = (earlier.info.schema(), node.info.schema());
    let is_forward = node.info.forward().is_some_and(|forward| forward.name == of_earlier.name);
    let attrs = of_node.attrs.iter().filter(|attr| of_earlier.attr(attr.name).is_some());
    let is_of_earlier = |name: &str| of_earlier.input(name).or(of_earlier.output(name)).is_some();
    let mut slots = of_node.inputs.iter().filter(|slot| is_of_earlier(slot.name));
    (is_forward || of_earlier.name == of_node.name)
        && attrs.map(|attr| attr.name).all(|name| earlier.desc.attrs.get(name) == node.desc.attrs.get(name))
        && slots.all(|slot| metas(graph, earlier, slot.name).eq(metas(graph, node, slot.name)))
}

/// Dtypes and shapes in a slot.
fn metas<'a>(graph: &'a Graph, node: &'a Instruction, slot: &'a str) -> impl Iterator<Item = &'a Meta> {
    let schema = node.info.schema();
    let of = move |wires: &'a Wires, slots: &'static [SlotDef]| {
        let in_slot = wires.iter().filter(move |(number, _)| number.is_some_and(|n| slots[n].name == slot));
        in_slot.filter_map(|(_, value)| Some(&graph.values[(*value)?].meta))
    };
    of(&node.inputs, schema.inputs).chain(of(&node.outputs, schema.outputs))
}
