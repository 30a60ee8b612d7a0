//! The graph under construction: what the variables of the program hold, and the names of values.
//!
//! Dead operators and nodes are dropped, so a rule may emit nodes that turn out unused. A rule that has a simpler form
//! when an output is unused checks `OnnxGraph::needed`.

use std::{
    collections::{HashMap, HashSet},
    ops::Deref,
};

use autobwd::{
    __private::internals::*, BlockId, DType, Error, ErrorKind, Meta, Program, Result, VarDesc, op::Role,
    program::Var,
};

use super::nodes::{SubGraph, TypedValue, live_nodes, messages};
use super::onnx::Onnx;
use crate::proto::{NodeProto, TensorProto};

pub(super) use super::graph_nodes::{GraphNodes, NodeAttr, OnnxValue};
use super::nodes::OnnxNode;

/// What variables hold.
pub(super) type VariableValues = HashMap<Var, OnnxValue>;

/// The graph around that of a node, while that is written.
pub(super) struct OuterGraph {
    nodes: Vec<OnnxNode>,
    values: VariableValues,
    remembered: VariableValues,
}

/// Nodes, and what the variables of a program hold after them.
pub(super) struct OnnxGraph<'p> {
    program: &'p Program,
    /// The block whose operators are written.
    block: BlockId,
    nodes: GraphNodes,
    /// Values that the program keeps.
    pub(super) initializers: Vec<TensorProto>,
    used: HashSet<String>,
    /// The number of the last name with a prefix.
    numbers: HashMap<String, usize>,
    pub(super) values: VariableValues,
    /// The results of the operator that is being written.
    results: Vec<(Var, OnnxValue)>,
    /// Values whose shapes variables such as `XShape` stand for.
    pub(super) remembered: VariableValues,
    /// Variables that an operator or the caller reads.
    pub(super) needed: HashSet<Var>,
    /// Values of variables in graphs of nodes, after which they are named.
    inner: Vec<(OnnxValue, Var)>,
}

impl Deref for OnnxGraph<'_> {
    type Target = GraphNodes;
    fn deref(&self) -> &GraphNodes {
        &self.nodes
    }
}

impl<'p> OnnxGraph<'p> {
    pub(super) fn new(program: &'p Program) -> OnnxGraph<'p> {
        OnnxGraph {
            program,
            block: BlockId::ROOT,
            nodes: GraphNodes::default(),
            initializers: vec![],
            used: HashSet::new(),
            numbers: HashMap::new(),
            values: VariableValues::new(),
            results: vec![],
            remembered: VariableValues::new(),
            needed: HashSet::new(),
            inner: vec![],
        }
    }

    /// Declares a graph input and binds it to `var`.
    pub(super) fn input(&mut self, var: Var, name: &str) -> OnnxValue {
        let node = self.named(name);
        self.used.insert(name.to_string());
        self.values.insert(var, node);
        node
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

    /// The dtype of a variable.
    pub(super) fn dtype(&self, var: Var) -> Result<DType> {
        Ok(self.desc(var)?.dtype)
    }

    /// The number of dimensions of a variable.
    pub(super) fn rank(&self, var: Var) -> Result<usize> {
        Ok(self.desc(var)?.dims.len())
    }

    /// What a variable holds before the operator that is being written, also where that operator overwrites it.
    pub(super) fn read(&self, var: Var) -> Result<OnnxValue> {
        self.values.get(&var).copied().ok_or_else(|| {
            let text = format!("`{}` is read before it has a value", self.program.name(var));
            Error::new(ErrorKind::Program, text)
        })
    }

    /// A variable in a slot of the operator that is being written, for its rule.
    ///
    /// # Errors
    /// An input without a value, unless it only stores a shape.
    pub(super) fn slot(&self, role: Role, var: Var) -> Result<Onnx> {
        if var == Var::EMPTY {
            return Ok(Onnx::of(&self.nodes, None, &Meta::new(DType::F32, []), false));
        }
        let stored = self.remembered.get(&var).copied();
        let value = match role {
            Role::Input if stored.is_none() => Some(self.read(var)?),
            Role::Input | Role::Output => None,
        };
        let (meta, is_read) = (self.desc(var)?.meta(), self.needed.contains(&var));
        Ok(Onnx::of(&self.nodes, value, &meta, is_read).storing(stored))
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

    /// Begins the graph of a node: nodes are appended to it until [`OnnxGraph::leave`]. Variables have the values of the
    /// graph around it, which is returned.
    pub(super) fn enter(&mut self) -> OuterGraph {
        OuterGraph {
            nodes: std::mem::take(&mut self.list().nodes),
            values: self.values.clone(),
            remembered: self.remembered.clone(),
        }
    }

    /// Ends the graph of a node.
    pub(super) fn leave(
        &mut self,
        OuterGraph { nodes, values, remembered }: OuterGraph,
        inputs: Vec<TypedValue>,
        outputs: Vec<TypedValue>,
    ) -> SubGraph {
        let outputs = self.own_values(outputs);
        let ends = outputs.iter().map(|output| output.value);
        let nodes = live_nodes(std::mem::replace(&mut self.list().nodes, nodes), ends);
        let values = std::mem::replace(&mut self.values, values);
        self.remembered = remembered;
        self.inner.extend(values.into_iter().map(|(var, value)| (value, var)));
        SubGraph { inputs, nodes, outputs }
    }

    /// Copies of those values that the graph does not compute itself, or that are several outputs.
    fn own_values(&mut self, values: Vec<TypedValue>) -> Vec<TypedValue> {
        let mut own: HashSet<OnnxValue> =
            self.list().nodes.iter().flat_map(|node| &node.outputs).copied().collect();
        let mut copy = |value: OnnxValue| match own.remove(&value) {
            true => value,
            false => self.op("Identity", &[value], &[]),
        };
        values.into_iter().map(|typed| TypedValue { value: copy(typed.value), ..typed }).collect()
    }

    /// A name that neither a variable nor a value has.
    fn fresh(&mut self, prefix: &str) -> String {
        let mut name = prefix.to_string();
        let number = self.numbers.entry(name.clone()).or_default();
        while self.program.find(&name).is_some() || !self.used.insert(name.clone()) {
            *number += 1;
            name = format!("{prefix}_{number}");
        }
        name
    }

    fn name_of(&self, value: OnnxValue) -> String {
        self.list().names[value.0].clone()
    }

    fn set_name(&self, value: OnnxValue, name: String) {
        self.list().names[value.0] = name;
    }

    /// Gives the value of a variable that name; a value that has another name is copied.
    ///
    /// # Errors
    /// Another value has that name.
    pub(super) fn publish(&mut self, var: Var, name: &str) -> Result<OnnxValue> {
        let mut value = self.read(var)?;
        let known = self.name_of(value);
        if known == name {
            return Ok(value);
        }
        if !known.is_empty() {
            value = self.op("Identity", &[value], &[]);
        }
        if !self.used.insert(name.to_string()) {
            return Err(Error::new(ErrorKind::Program, format!("two values would have the name `{name}`")));
        }
        self.set_name(value, name.to_string());
        Ok(value)
    }

    /// Names values after variables, and returns the nodes that the outputs depend on, constants first.
    pub(super) fn finish(&mut self, outputs: &[OnnxValue]) -> Vec<NodeProto> {
        let constants = std::mem::take(&mut self.list().constants);
        let mut nodes = std::mem::take(&mut self.list().nodes);
        nodes.splice(..0, constants);
        let nodes = live_nodes(nodes, outputs.iter().copied());
        for constant in nodes.iter().filter(|node| node.is_constant()) {
            if self.name_of(constant.outputs[0]).is_empty() {
                let name = self.fresh("constant");
                self.set_name(constant.outputs[0], name);
            }
        }
        let of_vars = self.values.iter().map(|(var, value)| (*value, *var)).chain(self.inner.drain(..));
        let mut of_vars: Vec<(OnnxValue, &str)> =
            of_vars.map(|(value, var)| (value, self.program.name(var))).collect();
        of_vars.sort_unstable_by_key(|(value, name)| (value.0, *name));
        for (value, name) in of_vars {
            if self.name_of(value).is_empty() {
                let is_taken = !self.used.insert(name.to_string());
                let name = if is_taken { self.fresh(name) } else { name.to_string() };
                self.set_name(value, name);
            }
        }
        let count = self.list().names.len();
        for value in (0..count).map(OnnxValue) {
            if self.name_of(value).is_empty() {
                let name = self.fresh("value");
                self.set_name(value, name);
            }
        }
        messages(nodes, &self.list().names)
    }
}
