//! Graphs from programs: each operator becomes nodes by its rule, its formula or its composition.

mod arith;
mod cond;
mod conditional_block;
mod control;
mod conv;
mod detection;
mod formula;
mod graph_nodes;
mod image;
mod index;
mod lstm;
mod matmul;
mod nodes;
mod norm;
mod onnx;
mod onnx_graph;
mod order;
mod pool;
mod reduce;
mod rnn;
mod rules;
mod shape;
mod slice;

use std::collections::HashSet;

use autobwd::{
    BlockId, DType, Dims, Error, ErrorKind, Meta, OpDesc, OpInfoMap, Program, Result, VarDesc,
    op::{Meaning, OpInfo},
    program::{Var, VarKind},
    tensor::Dim,
};
use autobwd_core::__private::{Obstacles, internals::*};
use autobwd_ops::{Model, model::lower};

use crate::{
    elements::ElementType,
    proto::{
        GraphProto, ModelProto, OperatorSetIdProto, StringStringEntryProto, TensorShapeProto, TypeProto,
        ValueInfoProto,
        tensor_shape_proto::{Dimension, dimension},
        type_proto,
    },
    tensors::message,
};
use cond::Choice;
use control::ForwardCalls;
use graph_nodes::GraphNodes;
pub use graph_nodes::NodeAttr;
use lstm::as_layers;
pub use onnx::Onnx;
use onnx_graph::OnnxGraph;
pub use rules::{OnnxRule, linked_rules};

/// The version of the operators in files, and that of the format.
const OPSET: i64 = 18;
const IR_VERSION: i64 = 8;

/// The end of the names of outputs that hold the next state.
const NEXT: &str = ".next";

/// Writes the operators of blocks.
struct ProgramWriter<'p> {
    program: &'p Program,
    ops: &'p OpInfoMap,
    obstacles: Obstacles,
    graph: OnnxGraph<'p>,
    steps: ForwardCalls,
}

impl<'p> ProgramWriter<'p> {
    fn new(program: &'p Program, ops: &'p OpInfoMap, obstacles: Obstacles) -> Result<ProgramWriter<'p>> {
        let steps = ForwardCalls::of(program, ops)?;
        Ok(ProgramWriter { program, ops, obstacles, graph: OnnxGraph::new(program), steps })
    }

    /// Appends the operators of a block to the current graph; `ends` are the variables that are read after them.
    /// Operators without a form become obstacles. Those on whose results nothing depends are left out.
    fn block(&mut self, block: BlockId, ends: &[Var]) {
        let ops = self.program.block(block).map_or(&[][..], |block| &block.ops);
        self.graph.needed.extend(ends);
        let mut next = 0;
        while let Some(op) = ops.get(next) {
            if block == BlockId::ROOT && !op.writes().any(|var| self.graph.needed.contains(&var)) {
                next += 1;
                continue;
            }
            let (at, branches) = (next, Choice::at(self, block, next, ends));
            next += branches.as_ref().map_or(1, Choice::len);
            let result = match &branches {
                Some(choice) => self.choice(choice),
                None => self.op(op),
            };
            if let Err(e) = result {
                let place = match block {
                    BlockId::ROOT => format!("operator {at}, `{}`", op.ty),
                    _ => format!("block {}, operator {at}, `{}`", block.index(), op.ty),
                };
                self.obstacles.add(place, e.to_string());
                self.graph.pretend(ops[at..next].iter().flat_map(OpDesc::writes));
            }
            self.graph.commit();
        }
    }

    fn op(&mut self, op: &OpDesc) -> Result<()> {
        let info = self.ops.get(&op.ty)?;
        if let Some(call) = info.call(op, self.program)? {
            return self.control(op, &call);
        }
        if let ([x_shape], [x]) = (op.outputs.get("XShape"), op.inputs.get("X")) {
            let x = self.graph.read(*x)?;
            self.graph.remembered.insert(*x_shape, x);
        }
        if self.by_rule(info, op)? {
            return Ok(());
        }
        match formula::lower(&mut self.graph, info, op)? {
            true => Ok(()),
            false => Err(Error::new(ErrorKind::Format, untranslated(info, op))),
        }
    }

    /// Writes an operator by its rule; `false` if it has none.
    fn by_rule(&mut self, info: &OpInfo, op: &OpDesc) -> Result<bool> {
        let Some(rule) = linked_rules().get(&*op.ty) else { return Ok(false) };
        let (schema, mut results) = (info.schema(), vec![]);
        let graph = &mut self.graph;
        let applied = rule.apply(op, &mut |role, _, var| graph.slot(role, var), &mut |slot, value| {
            results.push((slot, value))
        })?;
        graph.take_failure()?;
        for (number, slot) in schema.outputs.iter().enumerate() {
            let vars = op.outputs.get(slot.name).iter().filter(|var| **var != Var::EMPTY);
            let values = results.iter().filter(|(slot, _)| *slot == number);
            for (var, value) in vars.zip(values).filter_map(|(var, (_, value))| Some((var, value.value()?))) {
                graph.write(*var, value);
            }
        }
        Ok(applied)
    }
}

/// The reason why an operator cannot be written, and what its author can do.
fn untranslated(info: &OpInfo, op: &OpDesc) -> String {
    let missing = match info.meaning() {
        Meaning::Primitive => "no rule fits this primitive; write one,",
        _ => "neither a formula, nor a composition, nor a rule; write `impl Composition` for it, or",
    };
    format!(
        "operator `{}` has no form in ONNX: {missing} `impl Rule<Onnx>` with `autobwd_onnx::rules!`",
        op.ty
    )
}

/// The message of a model.
///
/// # Errors
/// An invalid program. Everything that stands in the way, as one list: operators without rule, formula and composition;
/// shapes that must be known; values that the scope does not hold.
pub(crate) fn export(model: &Model) -> Result<ModelProto> {
    let (failed, ops) = ("the model cannot be written for ONNX", OpInfoMap::linked()?);
    let mut obstacles = Obstacles::default();
    for name in model.feeds.iter().chain(&model.fetches) {
        obstacles.note("", model.program.expect_var(name));
    }
    obstacles.require_none(failed)?;
    ops.verify(&model.program)?;
    let fetched: Vec<Var> =
        model.fetches.iter().map(|name| model.program.expect_var(name)).collect::<Result<_>>()?;
    let needed = live_reads(&model.program, &fetched);
    // Values of a composition are there to be read.
    let is_read = |var: Var| needed.contains(&var) || var.index() >= model.program.name_count();
    let known = |program: &Program, block: BlockId, op: &OpDesc| {
        let info = ops.get(&op.ty)?;
        let nodes = GraphNodes::default();
        let slot = &mut |_, _, var: Var| {
            let meta = program.lookup(block, var).map_or_else(|| Meta::new(DType::F32, []), VarDesc::meta);
            Ok(Onnx::of(&nodes, None, &meta, is_read(var)))
        };
        let fits = linked_rules().get(&*op.ty).map_or(Ok(false), |rule| rule.fits(op, slot))?;
        Ok(fits || info.is_control() || info.formula(op)?.is_some())
    };
    let program = lower(&as_layers(&model.program, is_read)?, ops, known)?;
    let mut writer = ProgramWriter::new(&program, ops, obstacles)?;
    let (graph, obstacles) = (&mut writer.graph, &mut writer.obstacles);
    let mut file = GraphProto { name: Some("program".into()), ..GraphProto::default() };
    let fed: Vec<Var> = model.feeds.iter().map(|name| program.expect_var(name)).collect::<Result<_>>()?;
    for var in &fed {
        let name = program.name(*var);
        graph.input(*var, name);
        file.input.extend(obstacles.note("", graph.desc(*var).and_then(|desc| value_info(name, desc))));
    }
    let used: HashSet<Var> = program.root().ops.iter().flat_map(|op| op.reads().chain(op.writes())).collect();
    let mut kept = vec![];
    let persistable = program.root().vars.iter().filter(|(_, desc)| desc.persistable);
    for var in persistable.map(|(var, _)| var).filter(|var| used.contains(var)) {
        let name = program.name(*var);
        if fed.contains(var) {
            continue;
        }
        kept.push((*var, graph.input(*var, name)));
        graph.initializers.extend(obstacles.note("", model.scope.get(name)).map(|x| message(name, x)));
    }
    writer.graph.needed = live_reads(&program, &fetched);
    writer.block(BlockId::ROOT, &fetched);
    let ProgramWriter { mut graph, obstacles, .. } = writer;
    obstacles.require_none(failed)?;
    // State is what a step leaves changed; its value is the one to begin with.
    let (mut state, mut constants) = (vec![], vec![]);
    for (var, before) in kept {
        let desc = graph.desc(var)?;
        if graph.read(var)? != before {
            file.input.push(value_info(program.name(var), desc)?);
            state.push(var);
        }
        if desc.dtype.is_float() && !desc.parameter {
            constants.push(var);
        }
    }
    let fetched = fetched.into_iter().zip(model.fetches.iter().cloned());
    let next = state.iter().map(|var| (*var, format!("{}{NEXT}", program.name(*var))));
    let mut outputs = vec![];
    for (var, name) in fetched.chain(next) {
        outputs.push(graph.publish(var, &name)?);
        file.output.push(value_info(&name, graph.desc(var)?)?);
    }
    file.node = graph.finish(&outputs);
    file.initializer = graph.initializers;
    let entry = |key: &str, var: &Var, value: String| StringStringEntryProto {
        key: Some(format!("{key}.{}", program.name(*var))),
        value: Some(value),
    };
    let next = state.iter().map(|var| entry("next", var, format!("{}{NEXT}", program.name(*var))));
    // Other initializers of floating point numbers are parameters.
    let constants = constants.iter().map(|var| entry("constant", var, String::new()));
    let opset = |domain: &str, version: i64| OperatorSetIdProto {
        domain: Some(domain.into()),
        version: Some(version),
    };
    let mut opset_import = vec![opset("", OPSET)];
    if file.node.iter().any(|node| node.domain() == MICROSOFT) {
        opset_import.push(opset(MICROSOFT, 1));
    }
    Ok(ModelProto {
        ir_version: Some(IR_VERSION),
        opset_import,
        producer_name: Some("autobwd".into()),
        producer_version: Some(env!("CARGO_PKG_VERSION").into()),
        metadata_props: next.chain(constants).collect(),
        graph: Some(file),
        ..ModelProto::default()
    })
}

/// The domain of ONNX Runtime's own operators.
const MICROSOFT: &str = "com.microsoft";

/// What operators read that results and persistable variables depend on.
fn live_reads(program: &Program, results: &[Var]) -> HashSet<Var> {
    let root = program.root();
    let persistable = root.vars.iter().filter(|(_, desc)| desc.persistable).map(|(var, _)| *var);
    let inner = program.blocks().iter().skip(1).flat_map(|block| &block.ops).flat_map(OpDesc::reads);
    let mut live: HashSet<Var> = results.iter().copied().chain(persistable).chain(inner).collect();
    for op in root.ops.iter().rev() {
        if op.writes().any(|var| live.contains(&var)) {
            live.extend(op.reads());
        }
    }
    live
}

/// The declaration of an input or output; unknown dimensions are named after it.
fn value_info(name: &str, desc: &VarDesc) -> Result<ValueInfoProto> {
    if desc.kind != VarKind::Tensor {
        return Err(Error::new(ErrorKind::Program, format!("`{name}` is not a tensor")));
    }
    let ty = tensor_type(name, desc.dtype, &desc.dims);
    Ok(ValueInfoProto { name: Some(name.into()), r#type: Some(ty), ..ValueInfoProto::default() })
}

/// A dimension with a name: the name as it is, or a polynomial as text.
fn onnx_name(dim: Dim) -> String {
    dim.name().map_or_else(|| dim.to_string(), |name| name.to_string())
}

/// The type of a tensor of that name.
fn tensor_type(name: &str, dtype: DType, dims: &Dims) -> TypeProto {
    let dimension = |(axis, dim): (usize, &Dim)| {
        let value = match dim.get() {
            Some(dim) => dimension::Value::DimValue(dim as i64),
            None if dim.is_named() => dimension::Value::DimParam(onnx_name(*dim)),
            None => dimension::Value::DimParam(format!("{name}.{axis}")),
        };
        Dimension { value: Some(value), ..Dimension::default() }
    };
    let tensor = type_proto::Tensor {
        elem_type: Some(ElementType::of(dtype).data_type() as i32),
        shape: Some(TensorShapeProto { dim: dims.iter().enumerate().map(dimension).collect() }),
    };
    TypeProto { value: Some(type_proto::Value::TensorType(tensor)), ..TypeProto::default() }
}
