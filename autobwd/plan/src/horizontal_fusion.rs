//! Horizontal fusion: independent regions that only update variables of the scope share a frame.

use rustc_hash::FxHashSet;

use crate::{
    graph::{Graph, Node, ValueId},
    fusion::Group,
    memory_planning::{Layout, Spot},
};
use autobwd_core::Var;

/// Marks every region that shares the frame of its predecessor. Their outputs already have memory in the scope, so no
/// buffer's lifetime grows.
pub(super) fn mark(graph: &Graph, groups: &mut [Group], constants: usize, layout: &Layout) {
    let copied: FxHashSet<usize> = layout.copies.iter().map(|copy| copy.after).collect();
    // Variables of the scope that the current frame reads and writes; `None` if no region may join it.
    let mut frame: Option<(FxHashSet<Var>, FxHashSet<Var>)> = None;
    for (g, group) in groups.iter_mut().enumerate() {
        if g < constants || copied.contains(&g) || !is_update(graph, group, layout) {
            frame = None;
            continue;
        }
        let (mut reads, mut writes) = (FxHashSet::default(), FxHashSet::default());
        for node in &graph.nodes[group.nodes.clone()] {
            reads.extend(node.reads().filter_map(|v| kept(graph, v)));
            writes.extend(node.writes().filter_map(|v| kept(graph, v)));
        }
        match &mut frame {
            Some((read, written))
                if written.is_disjoint(&reads)
                    && written.is_disjoint(&writes)
                    && read.is_disjoint(&writes) =>
            {
                group.shares_frame = true;
                read.extend(reads);
                written.extend(writes);
            }
            _ => frame = Some((reads, writes)),
        }
    }
}

/// The scope's variable that a value is a version of.
fn kept(graph: &Graph, value: ValueId) -> Option<Var> {
    Some(&graph.values[value]).filter(|value| value.kept).map(|value| value.var)
}

/// Whether it writes only variables of the scope, in place.
fn is_update(graph: &Graph, group: &Group, layout: &Layout) -> bool {
    let mut writes = graph.nodes[group.nodes.clone()].iter().flat_map(Node::writes);
    group.region.is_some() && writes.all(|v| matches!(layout.spots[v], Spot::Register | Spot::Kept(_)))
}
