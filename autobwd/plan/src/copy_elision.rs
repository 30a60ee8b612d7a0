//! Copy elision: readers of a formula's output that equals an input read that input.

use std::{mem, sync::Arc};

use rustc_hash::FxHashMap;

use crate::{
    formulas::Formulas,
    value_graph::{Graph, Instruction, ValueId, ValueSource},
};
use autobwd_core::{Arity, Result, Var};

/// Removes formula outputs that copy a temporary to a temporary, and operators without remaining outputs.
pub(super) fn leave_out(graph: &mut Graph, formulas: &mut Formulas) -> Result<()> {
    let known = ValueUses::of(graph);
    let mut copied: FxHashMap<Var, Var> = FxHashMap::default();
    for mut node in mem::take(&mut graph.instructions) {
        copied.clear();
        for value in node.inputs.iter_mut().filter_map(|(_, v)| v.as_mut()) {
            if let ValueSource::Copy(of) = graph.values[*value].source {
                copied.insert(graph.values[*value].var, graph.values[of].var);
                *value = of;
            }
        }
        if !copied.is_empty() {
            let args = Arc::make_mut(&mut node.desc).inputs.args_mut();
            args.for_each(|var| *var = copied.get(var).copied().unwrap_or(*var));
        }
        let mut copies = copies(graph, &node, &known, formulas)?;
        let is_all = !copies.is_empty() && copies.len() == node.writes().count();
        if !is_all {
            let schema = node.info.schema();
            copies.retain(|(slot, _)| schema.outputs[*slot].arity == Arity::Optional);
        }
        for (slot, of) in copies {
            for (_, copy) in node.outputs.iter_mut().filter(|(number, _)| *number == Some(slot)) {
                if let Some(copy) = copy.take() {
                    graph.values[copy].source = ValueSource::Copy(of);
                }
            }
            let slot = node.info.schema().outputs[slot].name;
            Arc::make_mut(&mut node.desc).outputs.set(slot, [Var::EMPTY]);
        }
        if !is_all {
            graph.instructions.push(node);
        }
    }
    graph.index_writers();
    Ok(())
}

/// Properties of each value.
struct ValueUses {
    /// It must exist as a value of its own.
    stays: Vec<bool>,
    /// Its variable has no other value.
    only: Vec<bool>,
}

impl ValueUses {
    fn of(graph: &Graph) -> ValueUses {
        let count = graph.values.len();
        let (mut stays, mut only, mut definition) =
            (vec![false; count], vec![true; count], FxHashMap::default());
        let called = graph.instructions.iter().filter(|node| node.sub_block.is_some());
        let inputs = called.flat_map(|node| &node.inputs).filter_map(|(_, v)| *v);
        inputs.chain(graph.fetches.iter().chain(&graph.ends).copied()).for_each(|v| stays[v] = true);
        for (id, value) in graph.values.iter().enumerate() {
            if let Some(before) = definition.insert(value.var, id) {
                (only[before], only[id]) = (false, false);
            }
        }
        ValueUses { stays, only }
    }
}

/// Output slots that are copies of values without later writes, and these values.
fn copies(
    graph: &Graph,
    node: &Instruction,
    known: &ValueUses,
    formulas: &mut Formulas,
) -> Result<Vec<(usize, ValueId)>> {
    let Some(formula) = formulas.of(node.info, &node.desc)? else { return Ok(vec![]) };
    let own = |v: &ValueId| {
        let value = &graph.values[*v];
        matches!(value.source, ValueSource::Instruction(_)) && !value.in_scope && graph.is_whole_tensor(*v)
    };
    let mut found = vec![];
    for (output, input) in formula.copies() {
        let of = node.input(input).filter(|v| own(v) && known.only[*v]);
        let copy = node.output(output).filter(own).filter(|v| !known.stays[*v]);
        let (Some(of), Some(copy)) = (of, copy) else { continue };
        if graph.values[copy].meta.agrees(&graph.values[of].meta) {
            found.push((output, of));
        }
    }
    Ok(found)
}
