//! StableHLO text from programs: each operator by its rule, its formula or its composition.
//!
//! A program is lowered for feeds of known shapes. The planner's value graph gives every value its dtype and dimensions
//! and computes constants; its instructions are lowered one by one. An operator's rule is a short function, in the file
//! of its family in `ops`, that computes the outputs from the inputs ([`Rule`](autobwd::op::Rule)). An operator without a rule is lowered by
//! its formula (`formula`) or its composition (`composition`), so most operators of users need nothing. Any other
//! operator is refused by name.
//!
//! Rules assume valid data: where a kernel reports an index out of range, a lowered program reads a neighbour.
//!
//! Row-sparse gradients are lowered as dense tensors, and random numbers by the library's generator.

mod composition;
mod control;
mod formula;
mod graph_lowering;
mod hlo;
mod ops;
mod request;
mod rules;

pub use hlo::{
    ConvolutionLayout, GatherDims, Hlo, HloConvolution, HloDType, HloType, Reduction, ScatterDims, Window,
};
pub use request::LowerRequest;
pub use rules::{HloRule, linked_rules};

use autobwd::{Error, ErrorKind, OpInfoMap, Program, Result};
use autobwd_core::{__private::Obstacles, verify::require_valid};
use autobwd_plan::{GraphValue, Plan, PlanRequest, ValueSource, cut};

use crate::{Argument, Lowered, Output, Target, sharding::divided};
use graph_lowering::GraphLowering;
use hlo::HloFunction;

/// Lowers a program to StableHLO.
///
/// Values of the scope are arguments. Those that the program overwrites are donated to the results that replace them.
/// Only operators are lowered that the fetches need or that write values of the scope.
///
/// ```
/// use autobwd::{Builder, DType, Meta, OpInfoMap};
/// use autobwd_ops::Math;
/// use autobwd_xla::lower::{LowerRequest, lower};
///
/// let net = Builder::new();
/// let y = net.input("x", DType::F32, &[-1, 2]).tanh().name();
/// let x = Meta::new(DType::F32, [3, 2]);
/// let (program, ops) = (net.program()?, OpInfoMap::linked()?);
/// let lowered = lower(&program, ops, &LowerRequest::new(&[("x", x)], &|_| None, &[&y]))?;
/// assert!(lowered.text.contains("stablehlo.tanh %x : tensor<3x2xf32>"), "{}", lowered.text);
/// # Ok::<(), autobwd::Error>(())
/// ```
///
/// # Errors
/// Those of planning; operators without a form in StableHLO, in one list; no replicas; a [`Sharding`](crate::Sharding) of a
/// tensor that the program lacks.
pub fn lower(program: &Program, ops: &OpInfoMap, request: &LowerRequest<'_>) -> Result<Lowered> {
    let &LowerRequest { feeds, scope, fetches, replicas, sharding } = request;
    let partitions = sharding.map_or(1, |(_, devices)| devices);
    if replicas == 0 || partitions == 0 {
        return Err(Error::new(ErrorKind::Rank, "a program cannot be lowered for 0 devices"));
    }
    if replicas > 1 && partitions > 1 {
        return Err(Error::new(ErrorKind::Rank, "replicas of a program cannot be sharded"));
    }
    require_valid(ops, program)?;
    // A start-up program has no feeds, and lacks names of the step.
    if let Some((sharding, _)) = sharding.filter(|_| !feeds.is_empty()) {
        sharding.require_names(program)?;
    }
    let axis_of = |name: &str, dims: &[usize]| match sharding {
        Some((sharding, devices)) => sharding.axis_of(name, dims, devices),
        None => Ok(None),
    };
    let program = &*cut(program, feeds)?;
    let plan = Plan::new(program, ops, &PlanRequest::graph_only(feeds, scope, fetches))?;
    let graph = &plan.graph;
    let (f, mut arguments, mut defined) = (HloFunction::new(replicas), vec![], vec![]);
    let mut work = GraphLowering::new(program, ops, &f, graph);
    let scoped = (0..graph.values.len()).filter(|id| graph.values[*id].source == ValueSource::Scope);
    for id in graph.feeds.iter().copied().chain(scoped) {
        let GraphValue { var, meta, source, .. } = &graph.values[id];
        let (name, ty) = (program.name(*var), HloType::of(meta));
        let axis = axis_of(name, &ty.dims)?;
        let part = divided(&ty.dims, axis, partitions);
        let argument = match source {
            ValueSource::Scope => Argument::state(name, meta.dtype, part),
            _ => Argument::feed(name, meta.dtype, part),
        };
        arguments.push(Argument { axis, ..argument });
        let argument = f.argument(ty).with_known(meta.constant());
        f.name(&argument, name);
        work.values[id] = Some(argument.clone());
        defined.push(argument);
    }
    let mut obstacles = Obstacles::default();
    work.lower_all(&mut obstacles);
    let refused = obstacles.require_none("the program has no form in StableHLO");
    refused.map_err(|e| Error::new(ErrorKind::Unsupported, e.message()))?;

    let (mut results, mut values) = (vec![], vec![]);
    for (name, id) in fetches.iter().zip(&graph.ends) {
        let value = work.result(*id)?;
        results.push(Output::fetch(*name, graph.values[*id].meta.dtype, value.dims()));
        values.push(value);
    }
    for (id, value) in graph.values.iter().enumerate().filter(|(_, value)| value.in_scope) {
        let is_last = graph.values[id + 1..].iter().all(|later| !later.in_scope || later.var != value.var);
        if !is_last || !matches!(value.source, ValueSource::Instruction(_)) {
            continue;
        }
        let name = program.name(value.var);
        let after = work.result(id)?;
        let axis = axis_of(name, after.dims())?;
        let part = divided(after.dims(), axis, partitions);
        results.push(Output { axis, ..Output::state(name, value.meta.dtype, part) });
        values.push(after);
        let before = arguments.iter_mut().find(|argument| argument.name == name);
        if let Some(before) = before {
            before.donated = true;
        }
    }
    let text = main(&f, &arguments, &defined, &results, &values, partitions);
    let attributes = match (replicas, partitions) {
        (1, 1) => String::new(),
        (1, n) => format!(" attributes {{mhlo.num_partitions = {n} : i32}}"),
        (n, _) => format!(" attributes {{mhlo.num_replicas = {n} : i32}}"),
    };
    let text = format!("module @step{attributes} {{\n{text}}}\n");
    Ok(Lowered { text, arguments, results, replicas, partitions })
}

/// The attribute that says how a tensor is divided among devices.
fn sharding_attribute(axis: Option<usize>, rank: usize, partitions: usize) -> Option<String> {
    let text = match axis {
        _ if partitions == 1 => return None,
        None => "{replicated}".to_string(),
        Some(axis) => {
            let tiles: Vec<String> =
                (0..rank).map(|i| if i == axis { partitions } else { 1 }.to_string()).collect();
            format!("{{devices=[{}]<=[{partitions}]}}", tiles.join(","))
        }
    };
    Some(format!("mhlo.sharding = \"{text}\""))
}

/// The type of an argument or a result of the function, with attributes.
fn with_attributes(value: &Hlo, attributes: impl IntoIterator<Item = String>) -> String {
    let attributes: Vec<String> = attributes.into_iter().collect();
    match attributes.is_empty() {
        true => value.ty().to_string(),
        false => format!("{} {{{}}}", value.ty(), attributes.join(", ")),
    }
}

/// The text of the function.
fn main(
    f: &HloFunction,
    arguments: &[Argument],
    defined: &[Hlo],
    results: &[Output],
    values: &[Hlo],
    partitions: usize,
) -> String {
    let replaces = |argument: &Argument| {
        let state = |result: &Output| result.target == Target::State && result.name == argument.name;
        results.iter().position(state).filter(|_| argument.donated)
    };
    let parameters = arguments.iter().zip(defined).map(|(argument, value)| {
        let alias = replaces(argument).map(|at| format!("tf.aliasing_output = {at} : i32"));
        let sharding = sharding_attribute(argument.axis, value.dims().len(), partitions);
        format!("\n    {value}: {}", with_attributes(value, alias.into_iter().chain(sharding)))
    });
    let parameters = parameters.collect::<Vec<_>>().join(",");
    let types = values.iter().map(|value| value.ty().to_string()).collect::<Vec<_>>().join(", ");
    let names = values.iter().map(Hlo::to_string).collect::<Vec<_>>().join(", ");
    let end = if values.is_empty() { "return".to_string() } else { format!("return {names} : {types}") };
    let returned = results.iter().zip(values).map(|(result, value)| {
        with_attributes(value, sharding_attribute(result.axis, value.dims().len(), partitions))
    });
    let returned = returned.collect::<Vec<_>>().join(", ");
    let head = f.named(&format!("  func.func public @main({parameters}\n  ) -> ({returned}) {{\n"));
    format!("{head}{}    {}\n  }}\n", f.body(), f.named(&end))
}
