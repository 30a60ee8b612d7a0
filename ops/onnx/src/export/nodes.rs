//! Nodes under construction, whose values are named last, and the graphs of control flow within them.

use std::collections::HashSet;

use autobwd::{DType, Dims};

use super::{graph_nodes::OnnxValue, tensor_type};
use crate::proto::{AttributeProto, GraphProto, NodeProto, ValueInfoProto, attribute_proto::AttributeType};

/// A node.
pub(super) struct OnnxNode {
    /// Its operator and attributes.
    pub(super) message: NodeProto,
    pub(super) inputs: Vec<Option<OnnxValue>>,
    pub(super) outputs: Vec<OnnxValue>,
    /// Attributes that are graphs.
    pub(super) graphs: Vec<(&'static str, SubGraph)>,
}

impl OnnxNode {
    pub(super) fn is_constant(&self) -> bool {
        self.message.op_type() == "Constant"
    }
}

/// The graph of a branch or of a step. Its nodes also read values of the graphs around it.
pub(super) struct SubGraph {
    pub(super) inputs: Vec<TypedValue>,
    pub(super) nodes: Vec<OnnxNode>,
    pub(super) outputs: Vec<TypedValue>,
}

/// An input or output of a graph.
#[derive(Clone)]
pub(super) struct TypedValue {
    pub(super) value: OnnxValue,
    pub(super) dtype: DType,
    pub(super) dims: Dims,
}

/// The nodes that the outputs of a graph depend on.
pub(super) fn live_nodes(nodes: Vec<OnnxNode>, outputs: impl Iterator<Item = OnnxValue>) -> Vec<OnnxNode> {
    let mut read: HashSet<OnnxValue> = outputs.collect();
    let mut live = vec![];
    for node in nodes.into_iter().rev() {
        if node.outputs.iter().any(|output| read.contains(output)) {
            add_reads(&node, &mut read);
            live.push(node);
        }
    }
    live.reverse();
    live
}

/// Adds the values that a node and its graphs read.
fn add_reads(node: &OnnxNode, read: &mut HashSet<OnnxValue>) {
    read.extend(node.inputs.iter().flatten());
    for (_, graph) in &node.graphs {
        graph.nodes.iter().for_each(|node| add_reads(node, read));
    }
}

/// The messages of nodes, with the names of their values.
pub(super) fn messages(nodes: Vec<OnnxNode>, names: &[String]) -> Vec<NodeProto> {
    let message = |OnnxNode { mut message, inputs, outputs, graphs }: OnnxNode| {
        let name = |input: &Option<OnnxValue>| input.map_or_else(String::new, |input| names[input.0].clone());
        message.input = inputs.iter().map(name).collect();
        message.output = outputs.iter().map(|output| names[output.0].clone()).collect();
        message.name.clone_from(&message.output.first().cloned());
        for (attribute, graph) in graphs {
            message.attribute.push(AttributeProto {
                name: Some(attribute.into()),
                g: Some(graph_message(attribute, graph, names)),
                r#type: Some(AttributeType::Graph as i32),
                ..AttributeProto::default()
            });
        }
        message
    };
    nodes.into_iter().map(message).collect()
}

fn graph_message(name: &str, graph: SubGraph, names: &[String]) -> GraphProto {
    let typed = |values: Vec<TypedValue>| {
        let info = |TypedValue { value, dtype, dims }| ValueInfoProto {
            name: Some(names[value.0].clone()),
            r#type: Some(tensor_type(&names[value.0], dtype, &dims)),
            ..ValueInfoProto::default()
        };
        values.into_iter().map(info).collect()
    };
    GraphProto {
        name: Some(name.into()),
        input: typed(graph.inputs),
        output: typed(graph.outputs),
        node: messages(graph.nodes, names),
        ..GraphProto::default()
    }
}
