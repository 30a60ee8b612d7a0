//! The graph under construction: nodes, constants, and the values of the program's variables.
//!
//! Dead operators and nodes are dropped, so a rule may emit nodes that turn out unused. A rule that has a simpler form
//! when an output is unused checks `OnnxGraph::needed`.

use std::{
    collections::{HashMap, HashSet},
    rc::Rc,
};

use autobwd::{
    __private::internals::*,
    BlockId, DType, Error, ErrorKind, Program, Result, Tensor, VarDesc,
    program::Var,
    tensor::{Bool, Element},
};

use super::dims::OnnxDim;
use super::nodes::{OnnxNode, SubGraph, TypedValue, live_nodes, messages};
use super::rnn::RecurrentSteps;
use crate::{
    elements::ElementType,
    proto::{AttributeProto, NodeProto, TensorProto, attribute_proto::AttributeType},
    tensors::message,
};

/// A value of the graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct OnnxValue(pub(super) usize);

/// An attribute of a node.
pub(super) enum NodeAttr<'a> {
    Int(i64),
    Float(f32),
    Ints(&'a [i64]),
    Text(&'a str),
    Texts(&'a [&'a str]),
}

/// What variables hold.
pub(super) type VariableValues = HashMap<Var, OnnxValue>;

/// The graph around that of a node, while that is written.
pub(super) struct OuterGraph {
    nodes: Vec<OnnxNode>,
    values: VariableValues,
    remembered: VariableValues,
    recurrent: HashMap<Var, Rc<RecurrentSteps>>,
}

/// Nodes, and what the variables of a program hold after them.
pub(super) struct OnnxGraph<'p> {
    program: &'p Program,
    /// The block whose operators are written.
    block: BlockId,
    /// The nodes of the graph, or of the graph of a node that is being written.
    nodes: Vec<OnnxNode>,
    /// Values that the program keeps.
    pub(super) initializers: Vec<TensorProto>,
    /// Constants of rules: nodes, since initializers of floating point numbers are parameters.
    pub(super) constant_nodes: Vec<NodeProto>,
    /// The name of each value; empty until it is named.
    names: Vec<String>,
    used: HashSet<String>,
    pub(super) values: VariableValues,
    /// The results of the operator that is being written.
    results: Vec<(Var, OnnxValue)>,
    /// Values whose shapes variables such as `XShape` stand for.
    pub(super) remembered: VariableValues,
    /// The steps of recurrent layers, by the variables that hold what their gradient reads.
    pub(super) recurrent: HashMap<Var, Rc<RecurrentSteps>>,
    /// Variables that an operator or the caller reads.
    pub(super) needed: HashSet<Var>,
    /// Values of variables in graphs of nodes, after which they are named.
    inner: Vec<(OnnxValue, Var)>,
    constants: HashMap<(DType, Vec<usize>, Vec<u8>), OnnxValue>,
}

impl<'p> OnnxGraph<'p> {
    pub(super) fn new(program: &'p Program) -> OnnxGraph<'p> {
        OnnxGraph {
            program,
            block: BlockId::ROOT,
            nodes: vec![],
            initializers: vec![],
            constant_nodes: vec![],
            names: vec![],
            used: HashSet::new(),
            values: VariableValues::new(),
            results: vec![],
            remembered: VariableValues::new(),
            recurrent: HashMap::new(),
            needed: HashSet::new(),
            inner: vec![],
            constants: HashMap::new(),
        }
    }

    /// Declares a graph input and binds it to `var`.
    pub(super) fn input(&mut self, var: Var, name: &str) -> OnnxValue {
        let node = self.value(name.to_string());
        self.used.insert(name.to_string());
        self.values.insert(var, node);
        node
    }

    fn value(&mut self, name: String) -> OnnxValue {
        self.names.push(name);
        OnnxValue(self.names.len() - 1)
    }

    /// A value that is named later.
    pub(super) fn unnamed(&mut self) -> OnnxValue {
        self.value(String::new())
    }

    /// Sets the block whose operators are written, and returns the one before.
    pub(super) fn set_block(&mut self, block: BlockId) -> BlockId {
        std::mem::replace(&mut self.block, block)
    }

    pub(super) fn name(&self, var: Var) -> &'p str {
        self.program.name(var)
    }

    /// The declaration of a variable.
    pub(super) fn desc(&self, var: Var) -> Result<&'p VarDesc> {
        let declared = self.program.lookup(self.block, var);
        declared.ok_or_else(|| Error::internal(format!("`{}` is not declared", self.program.name(var))))
    }

    /// The dimensions of a variable, −1 where they are unknown.
    pub(super) fn shape(&self, var: Var) -> Result<Vec<i64>> {
        Ok(self.desc(var)?.dims.iter().map(|dim| dim.wire()).collect())
    }

    /// The dimensions of a variable.
    ///
    /// # Errors
    /// A dimension is unknown.
    pub(super) fn dims(&self, var: Var) -> Result<Vec<i64>> {
        let desc = self.desc(var)?;
        let known = |dim: &autobwd::tensor::Dim| dim.get().map(|dim| dim as i64);
        desc.dims.iter().map(known).collect::<Option<_>>().ok_or_else(|| self.unknown_shape(var))
    }

    #[cold]
    pub(super) fn unknown_shape(&self, var: Var) -> Error {
        let shape = self.desc(var).map_or_else(|_| String::new(), |desc| format!(", {},", desc.dims));
        let text = format!("the shape of `{}`{shape} must be known", self.program.name(var));
        Error::new(ErrorKind::Shape, text)
    }

    /// One dimension of a variable.
    ///
    /// # Errors
    /// It is unknown.
    pub(super) fn dim(&self, var: Var, axis: usize) -> Result<i64> {
        match self.shape(var)?.get(axis) {
            Some(dim) if *dim >= 0 => Ok(*dim),
            _ => Err(self.unknown_shape(var)),
        }
    }

    /// The dtype of a variable.
    pub(super) fn dtype(&self, var: Var) -> Result<DType> {
        Ok(self.desc(var)?.dtype)
    }

    /// The number of dimensions of a variable.
    pub(super) fn rank(&self, var: Var) -> Result<usize> {
        Ok(self.desc(var)?.dims.len())
    }

    /// An axis of a variable, from the start.
    pub(super) fn axis(&self, var: Var, axis: impl Into<i64>) -> Result<usize> {
        let (axis, rank) = (axis.into(), self.rank(var)?);
        let from_start = if axis < 0 { axis + rank as i64 } else { axis };
        usize::try_from(from_start).ok().filter(|axis| *axis < rank).ok_or_else(|| {
            let text = format!("`{}` has no axis {axis}", self.program.name(var));
            Error::new(ErrorKind::Shape, text)
        })
    }

    /// Axes of a variable, from the start.
    pub(super) fn axes(&self, var: Var, axes: &[i32]) -> Result<Vec<i64>> {
        axes.iter().map(|axis| Ok(self.axis(var, *axis)? as i64)).collect()
    }

    /// What a variable holds before the operator that is being written, also where that operator overwrites it.
    pub(super) fn read(&self, var: Var) -> Result<OnnxValue> {
        self.values.get(&var).copied().ok_or_else(|| {
            let text = format!("`{}` is read before it has a value", self.program.name(var));
            Error::new(ErrorKind::Program, text)
        })
    }

    /// Sets what a variable holds after the operator that is being written, if there is a variable.
    pub(super) fn write(&mut self, var: impl Into<Option<Var>>, node: OnnxValue) {
        self.results.extend(var.into().map(|var| (var, node)));
    }

    /// Ends an operator: variables hold its results.
    pub(super) fn commit(&mut self) {
        self.values.extend(self.results.drain(..));
    }

    /// Gives values to variables that could not be computed, so that further obstacles are found.
    pub(super) fn pretend(&mut self, vars: impl Iterator<Item = Var>) {
        for var in vars {
            let node = self.unnamed();
            self.write(var, node);
        }
    }

    /// Appends a node with several outputs.
    pub(super) fn nodes<const N: usize>(
        &mut self,
        op: &str,
        inputs: &[Option<OnnxValue>],
        attrs: &[(&str, NodeAttr<'_>)],
    ) -> [OnnxValue; N] {
        self.many(op, inputs, attrs, N).try_into().unwrap_or([OnnxValue(0); N])
    }

    /// The same for a number of outputs that is not known before.
    pub(super) fn many(
        &mut self,
        op: &str,
        inputs: &[Option<OnnxValue>],
        attrs: &[(&str, NodeAttr<'_>)],
        count: usize,
    ) -> Vec<OnnxValue> {
        self.node(op, inputs.to_vec(), attrs, vec![], count)
    }

    /// The same for a node with graphs, which are attributes of these names.
    pub(super) fn node(
        &mut self,
        op: &str,
        inputs: Vec<Option<OnnxValue>>,
        attrs: &[(&str, NodeAttr<'_>)],
        graphs: Vec<(&'static str, SubGraph)>,
        count: usize,
    ) -> Vec<OnnxValue> {
        let outputs: Vec<OnnxValue> = (0..count).map(|_| self.unnamed()).collect();
        let message = NodeProto {
            op_type: Some(op.into()),
            attribute: attrs.iter().map(|(name, attr)| attribute(name, attr)).collect(),
            ..NodeProto::default()
        };
        self.nodes.push(OnnxNode { message, inputs, outputs: outputs.clone(), graphs });
        outputs
    }

    /// Begins the graph of a node: nodes are appended to it until [`OnnxGraph::leave`]. Variables have the values of the
    /// graph around it, which is returned.
    pub(super) fn enter(&mut self) -> OuterGraph {
        OuterGraph {
            nodes: std::mem::take(&mut self.nodes),
            values: self.values.clone(),
            remembered: self.remembered.clone(),
            recurrent: self.recurrent.clone(),
        }
    }

    /// Ends the graph of a node.
    pub(super) fn leave(
        &mut self,
        OuterGraph { nodes, values, remembered, recurrent }: OuterGraph,
        inputs: Vec<TypedValue>,
        outputs: Vec<TypedValue>,
    ) -> SubGraph {
        let outputs = self.own_values(outputs);
        let ends = outputs.iter().map(|output| output.value);
        let nodes = live_nodes(std::mem::replace(&mut self.nodes, nodes), ends);
        let values = std::mem::replace(&mut self.values, values);
        (self.remembered, self.recurrent) = (remembered, recurrent);
        self.inner.extend(values.into_iter().map(|(var, value)| (value, var)));
        SubGraph { inputs, nodes, outputs }
    }

    /// Copies of those values that the graph does not compute itself, or that are several outputs.
    fn own_values(&mut self, values: Vec<TypedValue>) -> Vec<TypedValue> {
        let mut own: HashSet<OnnxValue> = self.nodes.iter().flat_map(|node| &node.outputs).copied().collect();
        let mut copy = |value: OnnxValue| match own.remove(&value) {
            true => value,
            false => self.op("Identity", &[value], &[]),
        };
        values.into_iter().map(|typed| TypedValue { value: copy(typed.value), ..typed }).collect()
    }

    /// Appends a node with one output.
    pub(super) fn op(&mut self, op: &str, inputs: &[OnnxValue], attrs: &[(&str, NodeAttr<'_>)]) -> OnnxValue {
        let inputs: Vec<_> = inputs.iter().copied().map(Some).collect();
        let [node] = self.nodes(op, &inputs, attrs);
        node
    }

    /// The operands of a value, if it is the result of that operator of two.
    pub(super) fn operands(&self, op: &str, value: OnnxValue) -> Option<[OnnxValue; 2]> {
        let node = self.nodes.iter().rev().find(|node| node.outputs == [value])?;
        match node.inputs[..] {
            [Some(x), Some(y)] if node.message.op_type() == op => Some([x, y]),
            _ => None,
        }
    }

    pub(super) fn add(&mut self, x: OnnxValue, y: OnnxValue) -> OnnxValue {
        self.op("Add", &[x, y], &[])
    }

    pub(super) fn sub(&mut self, x: OnnxValue, y: OnnxValue) -> OnnxValue {
        self.op("Sub", &[x, y], &[])
    }

    pub(super) fn mul(&mut self, x: OnnxValue, y: OnnxValue) -> OnnxValue {
        self.op("Mul", &[x, y], &[])
    }

    pub(super) fn div(&mut self, x: OnnxValue, y: OnnxValue) -> OnnxValue {
        self.op("Div", &[x, y], &[])
    }

    /// A constant tensor; equal ones are one.
    pub(super) fn tensor(&mut self, tensor: &Tensor) -> OnnxValue {
        let key = (tensor.dtype(), tensor.dims().to_vec(), tensor.bytes().to_vec());
        if let Some(node) = self.constants.get(&key) {
            return *node;
        }
        let name = self.fresh("constant");
        self.constant_nodes.push(NodeProto {
            op_type: Some("Constant".into()),
            output: vec![name.clone()],
            attribute: vec![AttributeProto {
                name: Some("value".into()),
                r#type: Some(AttributeType::Tensor as i32),
                t: Some(message("", tensor)),
                ..AttributeProto::default()
            }],
            ..NodeProto::default()
        });
        let node = self.value(name);
        self.constants.insert(key, node);
        node
    }

    /// A constant list of int64.
    pub(super) fn ints(&mut self, ints: &[i64]) -> Result<OnnxValue> {
        Ok(self.tensor(&Tensor::from_vec([ints.len()], ints.to_vec())?))
    }

    /// A constant list of float32.
    pub(super) fn floats(&mut self, floats: &[f32]) -> Result<OnnxValue> {
        Ok(self.tensor(&Tensor::from_vec([floats.len()], floats.to_vec())?))
    }

    /// A constant scalar.
    pub(super) fn scalar(&mut self, dtype: DType, x: f64) -> Result<OnnxValue> {
        fn of<T: Element>(x: T) -> Result<Tensor> {
            Tensor::from_vec([], vec![x])
        }
        let tensor = match dtype {
            DType::Bool => of(Bool::from(x != 0.0)),
            DType::U8 => of(x as u8),
            DType::I32 => of(x as i32),
            DType::I64 => of(x as i64),
            DType::F32 => of(x as f32),
            DType::F64 => of(x),
        };
        Ok(self.tensor(&tensor?))
    }

    /// A number everywhere, in these dimensions.
    pub(super) fn filled(&mut self, dtype: DType, number: f64, dims: &[i64]) -> Result<OnnxValue> {
        let (number, dims) = (self.scalar(dtype, number)?, self.ints(dims)?);
        Ok(self.op("Expand", &[number, dims], &[]))
    }

    /// A value in another dtype.
    pub(super) fn cast(&mut self, x: OnnxValue, dtype: DType) -> OnnxValue {
        self.op("Cast", &[x], &[("to", NodeAttr::Int(ElementType::of(dtype).data_type() as i64))])
    }

    /// A value in another shape; one dimension may be −1, which follows from the others.
    ///
    /// # Errors
    /// Several are −1.
    pub(super) fn reshape(&mut self, x: OnnxValue, dims: &[i64]) -> Result<OnnxValue> {
        if dims.iter().filter(|dim| **dim < 0).count() > 1 {
            return Err(Error::new(ErrorKind::Shape, format!("a shape, {dims:?}, must be known")));
        }
        let dims = self.ints(dims)?;
        Ok(self.op("Reshape", &[x, dims], &[("allowzero", NodeAttr::Int(1))]))
    }

    /// A value in the shape of a variable, in which one dimension may be unknown.
    pub(super) fn shaped_as(&mut self, x: OnnxValue, var: Var) -> Result<OnnxValue> {
        let shape = self.shape(var)?;
        let one = shape.iter().filter(|dim| **dim < 0).count() == 1 && !shape.contains(&0);
        let shape = if one { shape } else { self.dims(var)? };
        self.reshape(x, &shape)
    }

    /// The first elements along axes, as many as `ends` says.
    pub(super) fn first(&mut self, x: OnnxValue, ends: &[OnnxDim], axes: &[i64]) -> Result<OnnxValue> {
        let starts = self.ints(&vec![0; ends.len()])?;
        let (ends, axes) = (self.shape_list(ends)?, self.ints(axes)?);
        Ok(self.op("Slice", &[x, starts, ends, axes], &[]))
    }

    /// A value with its dimensions in another order.
    pub(super) fn permute(&mut self, x: OnnxValue, axes: &[i64]) -> OnnxValue {
        self.op("Transpose", &[x], &[("perm", NodeAttr::Ints(axes))])
    }

    /// Matrices with rows and columns exchanged.
    pub(super) fn transposed(&mut self, x: OnnxValue, rank: usize) -> OnnxValue {
        let mut axes: Vec<i64> = (0..rank as i64).collect();
        axes.swap(rank - 1, rank - 2);
        self.permute(x, &axes)
    }

    /// A reduction over axes; none means no reduction.
    pub(super) fn reduce(&mut self, op: &str, x: OnnxValue, axes: &[i64], keep: bool) -> Result<OnnxValue> {
        if axes.is_empty() {
            return Ok(x);
        }
        let axes = self.ints(axes)?;
        Ok(self.op(op, &[x, axes], &[("keepdims", NodeAttr::Int(i64::from(keep)))]))
    }

    /// A name that neither a variable nor a value has.
    fn fresh(&mut self, prefix: &str) -> String {
        let mut name = prefix.to_string();
        let mut number = 0;
        while self.program.find(&name).is_some() || !self.used.insert(name.clone()) {
            number += 1;
            name = format!("{prefix}_{number}");
        }
        name
    }

    /// Gives the value of a variable that name; a value that has another name is copied.
    ///
    /// # Errors
    /// Another value has that name.
    pub(super) fn publish(&mut self, var: Var, name: &str) -> Result<OnnxValue> {
        let mut node = self.read(var)?;
        if self.names[node.0] == name {
            return Ok(node);
        }
        if !self.names[node.0].is_empty() {
            node = self.op("Identity", &[node], &[]);
        }
        if !self.used.insert(name.to_string()) {
            return Err(Error::new(ErrorKind::Program, format!("two values would have the name `{name}`")));
        }
        self.names[node.0] = name.to_string();
        Ok(node)
    }

    /// Names values after variables, and returns the nodes that the outputs depend on.
    pub(super) fn finish(&mut self, outputs: &[OnnxValue]) -> Vec<NodeProto> {
        let of_vars = self.values.iter().map(|(var, node)| (*node, *var)).chain(self.inner.drain(..));
        let mut of_vars: Vec<(OnnxValue, &str)> =
            of_vars.map(|(node, var)| (node, self.program.name(var))).collect();
        of_vars.sort_unstable_by_key(|(node, name)| (node.0, *name));
        for (node, name) in of_vars {
            if self.names[node.0].is_empty() {
                let taken = !self.used.insert(name.to_string());
                self.names[node.0] = if taken { self.fresh(name) } else { name.to_string() };
            }
        }
        for at in 0..self.names.len() {
            if self.names[at].is_empty() {
                self.names[at] = self.fresh("value");
            }
        }
        let nodes = live_nodes(std::mem::take(&mut self.nodes), outputs.iter().copied());
        messages(nodes, &self.names)
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
