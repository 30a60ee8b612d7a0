//! The nodes of a graph under construction, shared by all of its values.

use std::{
    cell::{RefCell, RefMut},
    collections::HashMap,
    rc::Rc,
};

use autobwd::{DType, Error, ErrorKind, Result, Tensor};

use super::nodes::{OnnxNode, SubGraph};
use crate::{
    elements::ElementType,
    proto::{AttributeProto, NodeProto, attribute_proto::AttributeType},
    tensors::message,
};

/// A value of the graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct OnnxValue(pub(super) usize);

/// An attribute of a node.
#[derive(Clone, Copy, Debug)]
pub enum NodeAttr<'a> {
    /// An integer.
    Int(i64),
    /// A number.
    Float(f32),
    /// Integers.
    Ints(&'a [i64]),
    /// A text.
    Text(&'a str),
    /// Texts.
    Texts(&'a [&'a str]),
}

/// Nodes, constants and the names of values.
#[derive(Clone, Default)]
pub(super) struct GraphNodes(Rc<RefCell<NodeList>>);

#[derive(Default)]
pub(super) struct NodeList {
    /// The nodes of the graph, or of the graph of a node that is being written.
    pub(super) nodes: Vec<OnnxNode>,
    /// Constants of rules: nodes, since initializers of floating point numbers are parameters.
    pub(super) constants: Vec<OnnxNode>,
    known: HashMap<(DType, Vec<usize>, Vec<u8>), OnnxValue>,
    /// The name of each value; empty until it is named.
    pub(super) names: Vec<String>,
    /// The first failure of the operator that is being written.
    failure: Option<Error>,
}

impl GraphNodes {
    pub(super) fn list(&self) -> RefMut<'_, NodeList> {
        self.0.borrow_mut()
    }

    /// A value with a name; the empty name is replaced later.
    pub(super) fn named(&self, name: &str) -> OnnxValue {
        let names = &mut self.list().names;
        names.push(name.to_string());
        OnnxValue(names.len() - 1)
    }

    /// A value that is named later.
    pub(super) fn unnamed(&self) -> OnnxValue {
        self.named("")
    }

    /// Fails the operator that is being written.
    pub(super) fn fail(&self, error: Error) {
        self.list().failure.get_or_insert(error);
    }

    /// The first failure of the operator.
    pub(super) fn take_failure(&self) -> Result<()> {
        self.list().failure.take().map_or(Ok(()), Err)
    }

    /// Appends a node with several outputs.
    pub(super) fn nodes<const N: usize>(
        &self,
        op: &str,
        inputs: &[Option<OnnxValue>],
        attrs: &[(&str, NodeAttr<'_>)],
    ) -> [OnnxValue; N] {
        self.many(op, inputs, attrs, N).try_into().unwrap_or([OnnxValue(0); N])
    }

    /// The same for a number of outputs that is not known before.
    pub(super) fn many(
        &self,
        op: &str,
        inputs: &[Option<OnnxValue>],
        attrs: &[(&str, NodeAttr<'_>)],
        count: usize,
    ) -> Vec<OnnxValue> {
        self.node(op, inputs.to_vec(), attrs, vec![], count)
    }

    /// The same for a node with graphs, which are attributes of these names.
    pub(super) fn node(
        &self,
        op: &str,
        inputs: Vec<Option<OnnxValue>>,
        attrs: &[(&str, NodeAttr<'_>)],
        graphs: Vec<(&'static str, SubGraph)>,
        count: usize,
    ) -> Vec<OnnxValue> {
        let outputs: Vec<OnnxValue> = (0..count).map(|_| self.unnamed()).collect();
        let (domain, op) = op.rsplit_once(':').map_or((None, op), |(domain, op)| (Some(domain.into()), op));
        let message = NodeProto {
            domain,
            op_type: Some(op.into()),
            attribute: attrs.iter().map(|(name, attr)| attribute(name, attr)).collect(),
            ..NodeProto::default()
        };
        self.list().nodes.push(OnnxNode { message, inputs, outputs: outputs.clone(), graphs });
        outputs
    }

    /// Appends a node with one output.
    pub(super) fn op(&self, op: &str, inputs: &[OnnxValue], attrs: &[(&str, NodeAttr<'_>)]) -> OnnxValue {
        let inputs: Vec<_> = inputs.iter().copied().map(Some).collect();
        let [node] = self.nodes(op, &inputs, attrs);
        node
    }

    pub(super) fn add(&self, x: OnnxValue, y: OnnxValue) -> OnnxValue {
        self.op("Add", &[x, y], &[])
    }

    pub(super) fn sub(&self, x: OnnxValue, y: OnnxValue) -> OnnxValue {
        self.op("Sub", &[x, y], &[])
    }

    /// A constant tensor; equal ones are one.
    pub(super) fn tensor(&self, tensor: &Tensor) -> OnnxValue {
        let key = (tensor.dtype(), tensor.dims().to_vec(), tensor.bytes().to_vec());
        if let Some(node) = self.list().known.get(&key) {
            return *node;
        }
        let value = AttributeProto {
            name: Some("value".into()),
            r#type: Some(AttributeType::Tensor as i32),
            t: Some(message("", tensor)),
            ..AttributeProto::default()
        };
        let message =
            NodeProto { op_type: Some("Constant".into()), attribute: vec![value], ..NodeProto::default() };
        let value = self.unnamed();
        let mut list = self.list();
        list.constants.push(OnnxNode { message, inputs: vec![], outputs: vec![value], graphs: vec![] });
        list.known.insert(key, value);
        value
    }

    /// A constant list of int64.
    pub(super) fn ints(&self, ints: &[i64]) -> Result<OnnxValue> {
        Ok(self.tensor(&Tensor::from_vec([ints.len()], ints.to_vec())?))
    }

    /// A constant list of float32.
    pub(super) fn floats(&self, floats: &[f32]) -> Result<OnnxValue> {
        Ok(self.tensor(&Tensor::from_vec([floats.len()], floats.to_vec())?))
    }

    /// A constant scalar.
    pub(super) fn scalar(&self, dtype: DType, x: f64) -> Result<OnnxValue> {
        Ok(self.tensor(&Tensor::from_f64s(dtype, [], &[x])?))
    }

    /// A value in another dtype.
    pub(super) fn cast(&self, x: OnnxValue, dtype: DType) -> OnnxValue {
        self.op("Cast", &[x], &[("to", NodeAttr::Int(ElementType::of(dtype).data_type() as i64))])
    }

    /// A value in another shape; one dimension may be −1, which follows from the others.
    ///
    /// # Errors
    /// Several are −1.
    pub(super) fn reshape(&self, x: OnnxValue, dims: &[i64]) -> Result<OnnxValue> {
        if dims.iter().filter(|dim| **dim < 0).count() > 1 {
            return Err(Error::new(ErrorKind::Shape, format!("a shape, {dims:?}, must be known")));
        }
        let dims = self.ints(dims)?;
        Ok(self.op("Reshape", &[x, dims], &[("allowzero", NodeAttr::Int(1))]))
    }

    /// A value with its dimensions in another order.
    pub(super) fn permute(&self, x: OnnxValue, axes: &[i64]) -> OnnxValue {
        self.op("Transpose", &[x], &[("perm", NodeAttr::Ints(axes))])
    }
}

fn attribute(name: &str, value: &NodeAttr<'_>) -> AttributeProto {
    let mut attr = AttributeProto { name: Some(name.into()), ..AttributeProto::default() };
    let ty = match value {
        NodeAttr::Int(i) => {
            attr.i = Some(*i);
            AttributeType::Int
        }
        NodeAttr::Float(f) => {
            attr.f = Some(*f);
            AttributeType::Float
        }
        NodeAttr::Ints(ints) => {
            attr.ints = ints.to_vec();
            AttributeType::Ints
        }
        NodeAttr::Text(text) => {
            attr.s = Some(text.as_bytes().to_vec());
            AttributeType::String
        }
        NodeAttr::Texts(texts) => {
            attr.strings = texts.iter().map(|text| text.as_bytes().to_vec()).collect();
            AttributeType::Strings
        }
    };
    attr.r#type = Some(ty as i32);
    attr
}
