//! Relevance of inputs: an operator whose formula does not depend on an input reads another of its inputs instead, so
//! that the irrelevant value is not kept in memory. Operators whose results become dead are removed.
//!
//! A formula does not depend on an input that is missing in its expression graph (`lanes/formula.rs`). This is exact:
//! results are equal bit by bit. The substitute has the same dtype and shape, so block functions find elements in every
//! slot.

use std::{mem, sync::Arc};

use crate::{
    formulas::Formulas,
    value_graph::{Graph, Instruction, ValueId, ValueSource},
};
use autobwd_core::{
    __private::{Implementation, internals::*},
    OpInfo, Result,
};

/// Replaces the inputs that no output of a formula depends on.
pub(super) fn leave_out(graph: &mut Graph, formulas: &mut Formulas) -> Result<()> {
    let mut unread = vec![];
    for position in 0..graph.instructions.len() {
        for (slot, instead) in irrelevant(graph, &graph.instructions[position], formulas)? {
            let var = graph.values[instead].var;
            let node = &mut graph.instructions[position];
            for (_, value) in node.inputs.iter_mut().filter(|(number, _)| *number == Some(slot)) {
                unread.extend(value.replace(instead));
            }
            let slot = node.info.schema().inputs[slot].name;
            Arc::make_mut(&mut node.desc).inputs.set(slot, [var]);
        }
    }
    // Operators of dynamic shape, which run after these, read by name.
    if !unread.is_empty() && graph.tail.is_none() {
        prune(graph, unread);
    }
    Ok(())
}

/// Whether an operator runs by its formula only.
fn is_formula_alone(info: &OpInfo) -> bool {
    matches!(info.run(), Implementation::Formula { others: None })
}

/// Irrelevant input slots, each with a relevant input of the same dtype and shape.
fn irrelevant(graph: &Graph, node: &Instruction, formulas: &mut Formulas) -> Result<Vec<(usize, ValueId)>> {
    let (schema, mut found) = (node.info.schema(), vec![]);
    let is_float = |v: ValueId| graph.values[v].meta.dtype.is_float() && graph.is_whole_tensor(v);
    if !is_formula_alone(node.info) || !node.reads().chain(node.writes()).all(is_float) {
        return Ok(found);
    }
    let Some(formula) = formulas.of(node.info, &node.desc)? else { return Ok(found) };
    let slots = (0..schema.inputs.len()).filter(|slot| !schema.inputs[*slot].shape_only);
    let values = slots.filter_map(|slot| Some((slot, node.input(slot)?)));
    let (read, unread): (Vec<_>, Vec<_>) = values.partition(|(slot, _)| formula.is_read(*slot));
    let metas = |v: ValueId| (graph.values[v].meta.dtype, &graph.values[v].meta.dims);
    for (slot, value) in unread.into_iter().filter(|(_, value)| read.iter().all(|(_, v)| v != value)) {
        let instead = read.iter().find(|(_, other)| metas(*other) == metas(value));
        found.extend(instead.map(|(_, instead)| (slot, *instead)));
    }
    Ok(found)
}

/// Removes operators that become dead because these values are not read.
fn prune(graph: &mut Graph, unread: Vec<ValueId>) {
    let mut uses = vec![0_usize; graph.values.len()];
    graph
        .instructions
        .iter()
        .flat_map(|node| &node.inputs)
        .filter_map(|(_, v)| *v)
        .for_each(|v| uses[v] += 1);
    graph.fetches.iter().chain(&graph.ends).for_each(|v| uses[*v] += 1);
    let mut left_out = vec![false; graph.instructions.len()];
    let mut next = unread;
    while let Some(value) = next.pop() {
        let ValueSource::Instruction(position) = graph.values[value].source else { continue };
        let node = &graph.instructions[position];
        let is_idle = |v: ValueId| uses[v] == 0 && !graph.values[v].in_scope && !graph.values[v].meta.array;
        if left_out[position] || node.sub_block.is_some() || !node.writes().all(is_idle) {
            continue;
        }
        left_out[position] = true;
        let inputs: Vec<ValueId> = node.inputs.iter().filter_map(|(_, v)| *v).collect();
        for input in inputs {
            uses[input] -= 1;
            next.push(input);
        }
    }
    for (node, _) in graph.instructions.iter().zip(&left_out).filter(|(_, left_out)| **left_out) {
        node.writes().for_each(|v| graph.values[v].source = ValueSource::Unread);
    }
    let nodes = mem::take(&mut graph.instructions).into_iter().zip(left_out);
    graph.instructions = nodes.filter(|(_, left_out)| !left_out).map(|(node, _)| node).collect();
    graph.index_writers();
}
