//! Early updates: an update of a variable of the scope moves to where the gradient that it reads is complete, so that
//! the gradients of all parameters need not be in memory at the same time.
//!
//! It stays after every operator that may fail, because a failed step restores what was overwritten before. Operators
//! keep the values that they read, so no bit changes.

use std::mem;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    failures,
    value_graph::{Graph, Instruction, ValueId, ValueSource},
};
use autobwd_core::{OpInfoMap, Origin, Var, tensor::padded};

/// Smallest number of bytes to be freed early. Updates of smaller parameters share an instruction at the end.
const LEAST: usize = 1 << 16;

/// How an instruction moves.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Move {
    /// Not at all.
    Stay,
    /// To the first place where it can run: it frees memory there.
    Early,
    /// To the place of the first instruction that reads its results.
    Along,
}

/// Moves the updates that free memory, and what they depend on.
pub(super) fn reorder(graph: &mut Graph, ops: &OpInfoMap) {
    // Operators of dynamic shape, which run after these, may fail.
    if graph.tail.is_some() {
        return;
    }
    let floor = failures::may_fail(graph, ops).iter().rposition(|fails| *fails).map_or(0, |last| last + 1);
    let moves = moves(graph, floor);
    if !moves.contains(&Move::Early) {
        return;
    }
    let dependencies = dependencies(graph, &moves);
    // By instruction: the position after which it runs, and whether it is moved there.
    let mut places: Vec<(usize, bool)> = vec![];
    for (position, before) in dependencies.iter().enumerate() {
        places.push(match moves[position] {
            Move::Stay => (position, false),
            _ => (before.iter().map(|earlier| places[*earlier].0).max().unwrap_or(0).max(floor), true),
        });
    }
    let mut first_read = vec![usize::MAX; places.len()];
    for (position, before) in dependencies.iter().enumerate().rev() {
        if moves[position] == Move::Along {
            places[position].0 = places[position].0.max(first_read[position].min(position));
        }
        before.iter().for_each(|earlier| first_read[*earlier] = first_read[*earlier].min(places[position].0));
    }
    let mut nodes: Vec<_> = places.into_iter().zip(mem::take(&mut graph.instructions)).collect();
    nodes.sort_by_key(|(place, _)| *place);
    graph.instructions = nodes.into_iter().map(|(_, node)| node).collect();
    graph.index_writers();
}

/// By instruction: how it moves, if all from the position `floor` on may.
fn moves(graph: &Graph, floor: usize) -> Vec<Move> {
    let is_movable = |node: &Instruction| {
        node.desc.origin == Origin::Model
            && node.sub_block.is_none()
            && node.reads().chain(node.writes()).all(|value| graph.is_whole_tensor(value))
    };
    let mut last_read = vec![None; graph.values.len()];
    for (position, node) in graph.instructions.iter().enumerate() {
        node.reads().for_each(|value| last_read[value] = Some(position));
    }
    graph.fetches.iter().chain(&graph.ends).for_each(|value| last_read[*value] = None);
    let bytes = |value: ValueId| padded(graph.values[value].meta.bytes().unwrap_or(0));
    let mut moves = vec![Move::Stay; graph.instructions.len()];
    for (position, node) in graph.instructions.iter().enumerate().skip(floor).rev() {
        if !is_movable(node) {
            continue;
        }
        let is_temporary = |value: &ValueId| !graph.values[*value].in_scope;
        let dies = |value: &ValueId| {
            matches!(graph.values[*value].source, ValueSource::Instruction(_))
                && is_temporary(value)
                && last_read[*value] == Some(position)
        };
        let freed: usize = node.reads().filter(dies).collect::<FxHashSet<_>>().into_iter().map(bytes).sum();
        let taken: usize = node.writes().filter(is_temporary).map(bytes).sum();
        let updates = node.writes().any(|value| !is_temporary(&value));
        if updates && freed >= taken + LEAST {
            moves[position] = Move::Early;
        }
        if moves[position] != Move::Stay {
            let writers = node.reads().filter_map(|value| match graph.values[value].source {
                ValueSource::Instruction(writer) if writer >= floor => Some(writer),
                _ => None,
            });
            writers.filter(|writer| is_movable(&graph.instructions[*writer])).for_each(|writer| {
                moves[writer] = Move::Along;
            });
        }
    }
    moves
}

/// By instruction that moves: the instructions before it that write what it reads, or read or write the variables of
/// the scope that it writes.
fn dependencies(graph: &Graph, moves: &[Move]) -> Vec<Vec<usize>> {
    let mut touched: FxHashMap<Var, Vec<usize>> = FxHashMap::default();
    let in_scope = |value: &ValueId| graph.values[*value].in_scope;
    let var = |value: ValueId| graph.values[value].var;
    let mut dependencies = vec![];
    for (position, node) in graph.instructions.iter().enumerate() {
        let mut before = vec![];
        if moves[position] != Move::Stay {
            let inputs = node.inputs.iter().filter_map(|(_, value)| *value);
            before.extend(inputs.filter_map(|value| match graph.values[value].source {
                ValueSource::Instruction(writer) => Some(writer),
                _ => None,
            }));
            let written = node.writes().filter(in_scope).filter_map(|value| touched.get(&var(value)));
            before.extend(written.flatten());
        }
        for value in node.reads().chain(node.writes()).filter(in_scope) {
            touched.entry(var(value)).or_default().push(position);
        }
        dependencies.push(before);
    }
    dependencies
}
