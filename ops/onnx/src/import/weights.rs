//! Weights that a model for inference only moves: they are moved once, rather than in every run.

use std::{collections::HashMap, rc::Rc};

use autobwd::{DType, Expr, Result, Tensor};

use super::{
    Importer,
    fold::FOLDED_FLOATS,
    node::NodeContext,
    value::{ImportedValue, Known, ValueContent},
};
use crate::proto::{GraphProto, NodeProto};

/// Operators that only move elements.
const MOVES: [&str; 6] = ["Concat", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"];

/// How often names are read.
#[derive(Default)]
pub(crate) struct NameUses {
    all: HashMap<String, usize>,
    /// Among them, those that take a part.
    slices: HashMap<String, usize>,
    /// The parts that were taken: axis, start and end.
    parts: HashMap<String, Vec<[i64; 3]>>,
}

impl NameUses {
    /// Counts what the nodes read, in graphs within them, too; `times` is 2 where nodes may be imported repeatedly.
    pub(super) fn count(&mut self, nodes: &[NodeProto], times: usize) {
        for node in nodes {
            for name in &node.input {
                *self.all.entry(name.clone()).or_default() += times;
            }
            if let ("Slice", Some(name)) = (node.op_type(), node.input.first()) {
                *self.slices.entry(name.clone()).or_default() += times;
            }
            let times = if node.op_type() == "If" { times } else { 2 };
            let graphs =
                node.attribute.iter().flat_map(|attribute| attribute.g.iter().chain(&attribute.graphs));
            graphs.for_each(|graph| self.count_graph(graph, times));
        }
    }

    /// Counts what a graph reads and returns.
    pub(super) fn count_graph(&mut self, graph: &GraphProto, times: usize) {
        self.count(&graph.node, times);
        for output in &graph.output {
            *self.all.entry(output.name().to_string()).or_default() += times;
        }
    }

    /// Whether a value that is read under this name is read just once.
    fn is_private(&self, value: &ImportedValue, name: &str) -> bool {
        &*value.name == name && self.all.get(name) == Some(&1)
    }

    /// Whether a slice takes a part of a value whose other parts are taken by other slices.
    fn is_part(&mut self, proto: &NodeProto, inputs: &[Option<ImportedValue>]) -> bool {
        let (Some(Some(value)), Some(name)) = (inputs.first(), proto.input.first()) else { return false };
        if &*value.name != name || self.all.get(name) != self.slices.get(name) {
            return false;
        }
        let number = |i: usize, default: Option<i64>| match inputs.get(i).and_then(Option::as_ref) {
            None => default,
            Some(value) => match value.tensor().map(|tensor| tensor.to_f64s()).as_deref() {
                Some([number]) => Some(*number as i64),
                _ => None,
            },
        };
        let dims = value.dims();
        let [Some(start), Some(end), Some(axis), Some(1)] =
            [number(1, None), number(2, None), number(3, Some(0)), number(4, Some(1))]
        else {
            return false;
        };
        let Some(axis) = dims.axis(axis) else { return false };
        let Some(dim) = dims[axis].get().and_then(|dim| i64::try_from(dim).ok()) else { return false };
        let bound = |at: i64| (if at < 0 { at.saturating_add(dim) } else { at }).clamp(0, dim);
        let part = [axis as i64, bound(start), bound(end)];
        let taken = self.parts.entry(name.clone()).or_default();
        let apart = |other: &[i64; 3]| other[0] == part[0] && (other[2] <= part[1] || part[2] <= other[1]);
        let apart = taken.iter().all(apart);
        taken.push(part);
        apart
    }
}

impl Importer<'_> {
    /// Whether a node of constants only moves elements of weights that nothing else reads.
    pub(super) fn moves_weights(&mut self, proto: &NodeProto, inputs: &[Option<ImportedValue>]) -> bool {
        let known = inputs.iter().flatten().all(|value| value.tensor().is_some());
        if !self.options.inference || !known || !MOVES.contains(&proto.op_type()) {
            return false;
        }
        let named = inputs.iter().zip(&proto.input).filter_map(|(value, name)| Some((value.as_ref()?, name)));
        let large = |value: &ImportedValue| {
            value.tensor().is_some_and(|x| x.dtype().is_float() && x.numel() > FOLDED_FLOATS)
        };
        let private =
            |(value, name): (&ImportedValue, &String)| !large(value) || self.uses.is_private(value, name);
        let private = named.into_iter().all(private);
        private || (proto.op_type() == "Slice" && self.uses.is_part(proto, inputs))
    }
}

/// The elements of a weight in another shape.
pub(super) fn with_dims(x: &Tensor, dims: &[usize]) -> Result<Option<Tensor>> {
    match x.dtype() {
        DType::F32 => Tensor::from_vec(dims, x.slice::<f32>()?.to_vec()).map(Some),
        DType::F64 => Tensor::from_vec(dims, x.slice::<f64>()?.to_vec()).map(Some),
        _ => Ok(None),
    }
}

impl NodeContext<'_, '_> {
    /// The elements of a weight of a model for inference that nothing else reads.
    pub(super) fn private_weight(&self, i: usize) -> Option<Rc<Tensor>> {
        let (value, name) = (self.value(i)?, self.proto.input.get(i)?);
        match &value.content {
            ValueContent::Known(known) if self.importer.options.inference && self.scratch.is_none() => {
                self.importer.uses.is_private(value, name).then(|| known.tensor.clone())
            }
            _ => None,
        }
    }

    /// A constant made of the weight that is input `i`.
    pub(super) fn moved_weight(&mut self, i: usize, moved: Tensor) -> Result<Expr> {
        let name = self.required(i)?.name.clone();
        let known = Known::new(moved, None);
        self.importer.materialize(&name, &known)
    }
}
