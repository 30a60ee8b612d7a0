//! Horizontal fusion: fused kernels that only update variables of the scope share an instruction, if none needs a
//! result of another.

use rustc_hash::FxHashSet;

use crate::{
    fusion::FusionGroup,
    memory_planning::{Location, MemoryPlan},
    value_graph::{Graph, Instruction, ValueId},
};
use autobwd_core::Var;

/// Marks every fused kernel that shares the instruction of its predecessor. Their outputs already have memory in the
/// scope, so no buffer's lifetime grows.
pub(super) fn mark(graph: &Graph, groups: &mut [FusionGroup], constants: usize, layout: &MemoryPlan) {
    let copied: FxHashSet<usize> = layout.copies.iter().map(|copy| copy.after).collect();
    // Variables of the scope that the current instruction reads and writes; `None` if no fused kernel may join it.
    let mut instruction: Option<(FxHashSet<Var>, FxHashSet<Var>)> = None;
    for (g, group) in groups.iter_mut().enumerate() {
        if g < constants || copied.contains(&g) || !is_update(graph, group, layout) {
            instruction = None;
            continue;
        }
        let (mut reads, mut writes) = (FxHashSet::default(), FxHashSet::default());
        for node in &graph.instructions[group.nodes.clone()] {
            reads.extend(node.reads().filter_map(|v| scope_var(graph, v)));
            writes.extend(node.writes().filter_map(|v| scope_var(graph, v)));
        }
        match &mut instruction {
            Some((read, written))
                if written.is_disjoint(&reads)
                    && written.is_disjoint(&writes)
                    && read.is_disjoint(&writes) =>
            {
                group.shares_instruction = true;
                read.extend(reads);
                written.extend(writes);
            }
            _ => instruction = Some((reads, writes)),
        }
    }
}

/// The scope's variable that a value is a version of.
fn scope_var(graph: &Graph, value: ValueId) -> Option<Var> {
    Some(&graph.values[value]).filter(|value| value.in_scope).map(|value| value.var)
}

/// Whether it writes only variables of the scope, in place.
fn is_update(graph: &Graph, group: &FusionGroup, layout: &MemoryPlan) -> bool {
    let mut writes = graph.instructions[group.nodes.clone()].iter().flat_map(Instruction::writes);
    group.space.is_some()
        && writes.all(|v| matches!(layout.locations[v], Location::Register | Location::Scope(_)))
}
