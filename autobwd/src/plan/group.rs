//! Neighbouring elementwise operators over the same elements become one region.

use std::{collections::HashSet, ops::Range};

use crate::{
    DType, Shape, lanes,
    plan::graph::{Graph, Node, ValueId},
};

/// The elements that a formula runs over.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Extent {
    pub(crate) dtype: DType,
    pub(crate) dims: Shape,
}

/// Operators that run as one frame.
pub(crate) struct Group {
    pub(crate) nodes: Range<usize>,
    /// What a region runs over; `None` for a kernel.
    pub(crate) region: Option<Extent>,
}

/// How a formula's operand lies in the extent: its dimensions with ones where it is broadcast.
pub(crate) fn operand_dims(graph: &Graph, node: &Node, value: ValueId, extent: &Extent) -> Option<Shape> {
    let own = graph.values[value].meta.dims.known()?;
    let axis = lanes::broadcast_axis(node.info.schema(), &node.desc);
    lanes::aligned(&own, extent.dims.len(), axis, 1)
}

/// Whether the operand has every element of the extent.
pub(crate) fn is_whole(graph: &Graph, node: &Node, value: ValueId, extent: &Extent) -> bool {
    operand_dims(graph, node, value, extent).is_some_and(|dims| dims == extent.dims)
}

fn extent(graph: &Graph, node: &Node) -> Option<Extent> {
    node.info.lanes()?;
    // A formula takes whole tensors: with others, it is the operator's kernel that runs.
    if node.reads().any(|v| graph.values[v].meta.rows.is_some()) {
        return None;
    }
    let inputs: Vec<_> =
        node.inputs.iter().filter_map(|(_, v)| *v).map(|v| graph.values[v].meta.clone()).collect();
    let axis = lanes::broadcast_axis(node.info.schema(), &node.desc);
    let dims = lanes::broadcast_dims(&inputs, axis).ok()?;
    Some(Extent { dtype: inputs.first()?.dtype, dims: dims.known()? })
}

/// Cuts the line of operators into groups, in order; when `apart`, one for each operator.
pub(crate) fn group(graph: &Graph, apart: bool) -> Vec<Group> {
    let mut groups: Vec<Group> = vec![];
    // What the last group writes element for element, and what it sums up.
    let (mut whole, mut summed): (HashSet<ValueId>, HashSet<ValueId>) = Default::default();
    for (i, node) in graph.nodes.iter().enumerate() {
        let extent = extent(graph, node);
        let joins = match (groups.last(), &extent) {
            (Some(Group { region: Some(before), .. }), Some(extent)) if !apart && before == extent => {
                // A sum is not complete, and a broadcast operand not whole, before the region ends.
                node.reads().all(|v| {
                    !summed.contains(&v) && (!whole.contains(&v) || is_whole(graph, node, v, extent))
                })
            }
            _ => false,
        };
        match groups.last_mut() {
            Some(group) if joins => group.nodes.end = i + 1,
            _ => {
                groups.push(Group { nodes: i..i + 1, region: extent.clone() });
                whole.clear();
                summed.clear();
            }
        }
        if let Some(extent) = &extent {
            for value in node.writes() {
                if is_whole(graph, node, value, extent) {
                    whole.insert(value)
                } else {
                    summed.insert(value)
                };
            }
        }
    }
    groups
}
