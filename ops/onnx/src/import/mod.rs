//! Programs from graphs: each node is appended to a [`Builder`] by the rule of its operator.

mod arith;
mod attention;
mod constants;
mod control;
mod detection;
mod elementwise;
mod equal_sizes;
mod fold;
mod image;
mod index;
mod initializers;
mod interface;
mod loss;
mod matmul;
mod names;
mod node;
mod norm;
mod options;
mod pad;
mod planned;
mod pool;
mod quantize;
mod random;
mod reduce;
mod resize;
mod rnn;
mod rules;
mod sequence;
mod shape;
mod signal;
mod sizes;
mod slice;
mod value;
mod weights;
mod while_loop;
mod windows;

use std::{
    cell::RefCell,
    collections::{HashMap, HashSet},
    rc::Rc,
};

use autobwd::{
    Builder, Dims, Error, ErrorKind, Executor, OpInfoMap, Program, Result, Scope, Tensor, program::Var,
};
use autobwd_core::__private::{Obstacles, internals::*};
use autobwd_ops::{Model, model::recognise};

use crate::{
    external::ExternalData,
    options::LoadOptions,
    proto::{
        FunctionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto, ValueInfoProto,
    },
    tensors::OnnxTensor,
};
use names::NodeNames;
use options::declared_dims;
use rules::rule;
use value::{ImportedValue, ParameterVariables, ValueContent};
use weights::NameUses;

/// How deep functions and graphs may be nested.
const DEPTH: usize = 64;

/// Nodes that functions may expand to.
const NODES: usize = 1 << 20;

/// The model of a file.
///
/// # Errors
/// Everything that stands in the way, as one list.
pub(crate) fn import(
    mut file: ModelProto,
    external: &ExternalData,
    options: &LoadOptions,
    source: &str,
) -> Result<Model> {
    let failed = format!("{source} cannot be loaded");
    let tensors =
        file.graph.as_mut().map(|graph| initializers::take_tensors(graph, external)).unwrap_or_default();
    let mut importer = Importer {
        net: Builder::new(),
        kept: vec![],
        obstacles: Obstacles::default(),
        options,
        external,
        tensors,
        functions: HashMap::new(),
        state: HashMap::new(),
        changing: HashSet::new(),
        constants: HashSet::new(),
        fixed: RefCell::default(),
        initializers: HashMap::new(),
        uses: NameUses::default(),
        executor: Executor::with_threads(1),
        names: NodeNames::default(),
        feeds: HashSet::new(),
        declared: HashMap::new(),
        frames: vec![],
        depth: 0,
        nodes: 0,
    };
    for function in &file.functions {
        let key = (function.domain(), function.name(), function.overload());
        importer.functions.insert(key, function);
        importer.uses.count(&function.node, 2);
    }
    for pair in &file.metadata_props {
        // As training steps are written.
        if let Some(name) = pair.key().strip_prefix("next.") {
            importer.state.insert(pair.value(), name);
            importer.changing.insert(name);
        }
        importer.constants.extend(pair.key().strip_prefix("constant."));
    }
    let graph = file.graph.as_ref();
    let graph = graph.ok_or_else(|| Error::new(ErrorKind::Format, format!("{failed}: it has no graph")))?;
    importer.constants.extend(initializers::exported_constants(graph));
    importer.uses.count_graph(graph, 1);
    let (feeds, fetches) = importer.model(graph, &file.opset_import);
    let Importer { net, kept, mut obstacles, names, fixed, initializers, .. } = importer;
    drop((importer.frames, initializers));
    // Nothing else holds the tensors now.
    let kept = kept.into_iter().map(|(name, tensor)| (name, Rc::unwrap_or_clone(tensor)));
    let mut kept: Vec<(String, Tensor)> = kept.collect();
    obstacles.require_none(&failed)?;
    let program = obstacles.note("", net.program());
    obstacles.require_none(&failed)?;
    let mut program = program.map(|program| (*program).clone()).unwrap_or_default();
    let mut named = names.apply(&mut program);
    for expr in fixed.into_inner().values().filter_map(|variable| variable.take()) {
        let var = program.find(&expr.name());
        let desc = var.and_then(|var| program.root_mut().vars.get_mut(&var));
        desc.into_iter().for_each(|desc| desc.stop_gradient = true);
    }
    planned::write_constants(&mut program, &mut kept)?;
    named.extend(fetches.iter().filter_map(|name| program.find(name)));
    equal_sizes::merge(&mut program, |var| named.contains(&var));
    if !options.as_written {
        let read: HashSet<Var> = fetches.iter().filter_map(|name| program.find(name)).collect();
        obstacles.note("", recognise(&mut program, |var| read.contains(&var)));
    }
    program.mark_loaded();
    obstacles.note("", OpInfoMap::linked()?.verify(&program));
    obstacles.require_none(&failed)?;
    let mut scope = Scope::new();
    kept.into_iter().for_each(|(name, value)| scope.set(&name, value));
    Ok(Model { program, feeds, fetches, scope })
}

/// The names that nodes see.
struct Frame {
    /// `None` for values that could not be imported.
    values: HashMap<String, Option<ImportedValue>>,
    opsets: Rc<HashMap<String, i64>>,
    /// Whether nodes see the names of the frame around, too.
    inner: bool,
}

pub(crate) struct Importer<'m> {
    net: Builder,
    /// The values that the program keeps.
    kept: Vec<(String, Rc<Tensor>)>,
    obstacles: Obstacles,
    options: &'m LoadOptions,
    external: &'m ExternalData,
    /// The initializers of the main graph that were read, by their address in the file.
    tensors: HashMap<*const TensorProto, OnnxTensor>,
    functions: HashMap<(&'m str, &'m str, &'m str), &'m FunctionProto>,
    /// Names of initializers that are no parameters.
    constants: HashSet<&'m str>,
    /// The parameters that rules have read as numbers.
    fixed: RefCell<ParameterVariables>,
    /// The initializers of graphs that nodes may repeat, by their address in the file.
    initializers: HashMap<*const TensorProto, Option<ImportedValue>>,
    /// Outputs that hold the next value of an initializer, with its name.
    state: HashMap<&'m str, &'m str>,
    /// The names of these initializers.
    changing: HashSet<&'m str>,
    uses: NameUses,
    /// For nodes of constants.
    executor: Executor,
    names: NodeNames,
    /// The variables of inputs.
    feeds: HashSet<Var>,
    /// Open dimensions that the file declares of values of the main graph: polynomials of names of its inputs.
    declared: HashMap<&'m str, Dims>,
    frames: Vec<Frame>,
    depth: usize,
    nodes: usize,
}

impl<'m> Importer<'m> {
    /// Imports the graph of the model; returns the names of its inputs and outputs.
    fn model(&mut self, graph: &'m GraphProto, opsets: &[OperatorSetIdProto]) -> (Vec<String>, Vec<String>) {
        // Names that the library makes must not be those of the file.
        let mut program = Program::new();
        let named = graph.input.iter().chain(&graph.output).map(ValueInfoProto::name);
        let named = named.chain(graph.initializer.iter().map(TensorProto::name));
        for name in named.chain(graph.node.iter().flat_map(|node| &node.output).map(String::as_str)) {
            program.var(&variable_name(name));
        }
        self.net.set_program(program);
        self.frames.push(Frame { values: HashMap::new(), opsets: versions(opsets), inner: false });
        self.initializers(graph);
        self.check_options(graph);
        let mut feeds = vec![];
        let initialized: HashSet<&str> = graph.initializer.iter().map(TensorProto::name).collect();
        for input in graph.input.iter().filter(|input| !initialized.contains(input.name())) {
            self.graph_input(input, &mut feeds);
        }
        self.declared = declared_dims(graph);
        self.nodes(&graph.node);
        self.unread_parameters(graph);
        let mut fetches = vec![];
        for output in &graph.output {
            self.graph_output(output.name(), &mut fetches);
        }
        self.frames.pop();
        (feeds, fetches)
    }

    /// The variable of an interned name.
    fn var(&self, name: &str) -> Var {
        self.net.program().ok().and_then(|program| program.find(name)).unwrap_or(Var::EMPTY)
    }

    /// The value of a name; `Some(None)` if it could not be imported.
    fn lookup(&self, name: &str) -> Option<Option<ImportedValue>> {
        for frame in self.frames.iter().rev() {
            if let Some(value) = frame.values.get(name) {
                return Some(value.clone());
            }
            if !frame.inner {
                return None;
            }
        }
        None
    }

    fn bind(&mut self, name: &str, value: Option<ImportedValue>) {
        if let Some(frame) = self.frames.last_mut().filter(|_| !name.is_empty())
            && frame.values.insert(name.to_string(), value).is_some()
        {
            self.obstacles
                .add(format!("value `{name}`"), "it is assigned twice: names must be unique in a graph");
        }
    }

    fn nodes(&mut self, nodes: &[NodeProto]) {
        for node in nodes {
            let outputs = self.node(node);
            let place = match node.name() {
                "" => format!("node `{}`", node.output.first().map_or("", String::as_str)),
                name => format!("node `{name}`"),
            };
            let outputs = match outputs {
                Ok(outputs) => outputs,
                Err(None) => vec![],
                Err(Some(e)) => {
                    self.obstacles.add(&*place, e.to_string());
                    vec![]
                }
            };
            self.name_node(&names::place_in_module(node), &outputs, &node.output);
            let mut outputs = outputs.into_iter();
            for name in &node.output {
                let value = outputs.next().map(|value| ImportedValue { name: name.as_str().into(), ..value });
                if let (Some(dims), true) = (self.declared.get(name.as_str()), self.frames.len() == 1)
                    && let Some(ValueContent::Computed(expr)) = value.as_ref().map(|value| &value.content)
                {
                    self.net.refine(expr, dims);
                }
                self.bind(name, value);
            }
        }
    }

    /// The outputs of a node; `Err(None)` if an input could not be imported.
    fn node(&mut self, node: &NodeProto) -> Result<Vec<ImportedValue>, Option<Error>> {
        let refuse = |text: String| Some(Error::new(ErrorKind::Format, text));
        self.nodes += 1;
        if self.nodes > NODES {
            return Err(refuse(format!("the model has more than {NODES} nodes")));
        }
        let domain = if node.domain() == "ai.onnx" { "" } else { node.domain() };
        let function = self.functions.get(&(node.domain(), node.op_type(), node.overload())).copied();
        let key = if domain.is_empty() {
            node.op_type().to_string()
        } else {
            format!("{domain}:{}", node.op_type())
        };
        let version = self.frames.last().and_then(|frame| frame.opsets.get(domain).copied());
        let rule = rule(&key);
        if function.is_none() {
            if rule.is_none() {
                return Err(refuse(format!("operator `{key}` is not supported")));
            }
            if version.is_none() {
                return Err(refuse(format!("the model does not import operator set `{domain}`")));
            }
        }
        let mut inputs = vec![];
        for name in &node.input {
            inputs.push(match name.is_empty() {
                true => None,
                false => match self.lookup(name) {
                    None => return Err(refuse(format!("no node before it computes `{name}`"))),
                    Some(None) => return Err(None),
                    Some(value) => value,
                },
            });
        }
        match (function, rule) {
            (Some(function), _) => self.call(function, node, inputs),
            (None, Some(rule)) => Ok(self.apply(rule, node, inputs, version.unwrap_or(1))?),
            (None, None) => Err(None),
        }
    }

    /// Inlines a function.
    fn call(
        &mut self,
        function: &FunctionProto,
        node: &NodeProto,
        inputs: Vec<Option<ImportedValue>>,
    ) -> Result<Vec<ImportedValue>, Option<Error>> {
        let mut values = HashMap::new();
        for (i, name) in function.input.iter().enumerate() {
            if let Some(Some(value)) = inputs.get(i) {
                values.insert(name.clone(), Some(value.clone()));
            }
        }
        let body: Vec<NodeProto> = function
            .node
            .iter()
            .map(|inner| {
                let mut inner = inner.clone();
                for name in &mut inner.input {
                    // An input that the caller leaves out.
                    if function.input.contains(name) && !values.contains_key(name.as_str()) {
                        name.clear();
                    }
                }
                fold::resolve_attributes(&mut inner, node, function);
                inner
            })
            .collect();
        let opsets = versions(&function.opset_import);
        let frame = Frame { values, opsets, inner: false };
        // The graphs in this body have addresses for as long as the body lives.
        let initializers = std::mem::take(&mut self.initializers);
        let within = self.within(frame, |importer| importer.nodes(&body));
        self.initializers = initializers;
        let (frame, ()) = within?;
        let value = |name: &String| frame.values.get(name).cloned().flatten();
        function.output.iter().map(value).collect::<Option<_>>().ok_or(None)
    }

    /// Imports a graph of a node in the current block; returns the values of its outputs.
    fn graph(
        &mut self,
        graph: &GraphProto,
        inputs: Vec<Option<ImportedValue>>,
    ) -> Result<Vec<ImportedValue>> {
        let opsets = self.frames.last().map(|frame| frame.opsets.clone()).unwrap_or_default();
        let names = graph.input.iter().map(|input| input.name().to_string());
        let values = names.zip(inputs).collect();
        let frame = self.within(Frame { values, opsets, inner: true }, |importer| {
            importer.initializers(graph);
            importer.nodes(&graph.node);
            let outputs: Vec<_> = graph.output.iter().map(|output| importer.lookup(output.name())).collect();
            let values: Option<Vec<ImportedValue>> = outputs.into_iter().map(Option::flatten).collect();
            values.ok_or_else(|| Error::new(ErrorKind::Format, "a graph in it cannot be imported"))
        })?;
        frame.1
    }

    /// Runs `import` with the names of a frame.
    fn within<T>(&mut self, frame: Frame, import: impl FnOnce(&mut Importer<'m>) -> T) -> Result<(Frame, T)> {
        if self.depth == DEPTH {
            let text = format!("functions and graphs are nested more than {DEPTH} deep");
            return Err(Error::new(ErrorKind::Format, text));
        }
        self.depth += 1;
        self.frames.push(frame);
        let outcome = import(self);
        self.depth -= 1;
        let frame = self.frames.pop().ok_or_else(|| Error::internal("no scope of names"))?;
        Ok((frame, outcome))
    }
}

/// The versions of operator sets by domain.
fn versions(opsets: &[OperatorSetIdProto]) -> Rc<HashMap<String, i64>> {
    let domain = |opset: &OperatorSetIdProto| match opset.domain() {
        "ai.onnx" => String::new(),
        domain => domain.to_string(),
    };
    Rc::new(opsets.iter().map(|opset| (domain(opset), opset.version())).collect())
}

/// A name as variables may have it.
pub(crate) fn variable_name(name: &str) -> String {
    let allowed = |c: char| if c == '@' || c.is_whitespace() || c.is_control() { '_' } else { c };
    match name {
        "" => "_".to_string(),
        name => name.chars().map(allowed).collect(),
    }
}
