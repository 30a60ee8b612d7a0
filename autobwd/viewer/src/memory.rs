//! The memory plan: instructions, the operators they run, and the buffers of the arena over time.

use serde::Serialize;

use autobwd_core::{Meta, OpDesc, OpInfoMap, Origin, Program, Result, Var, verify::require_valid};
use autobwd_plan::{FusionGroup, Plan, PlanReport, PlanRequest, cut};

use crate::texts::Texts;

/// The memory plan as the page reads it.
#[derive(Debug, Serialize)]
pub(crate) struct MemoryTimeline {
    /// By instruction: the operators of the root block that it runs.
    instructions: Vec<Vec<usize>>,
    /// Names (texts), bytes, offset, first and last instruction.
    buffers: Vec<(Vec<usize>, usize, usize, usize, usize)>,
    arena: usize,
    peak: usize,
    /// The first operator whose shapes depend on data: it is planned when it runs.
    dynamic: Option<String>,
}

/// The plan of a program with the linked operators. Variables of the scope have their declared shapes, or those among
/// the feeds.
pub(crate) fn memory(program: &Program, feeds: &[(&str, Meta)], texts: &mut Texts) -> Result<MemoryTimeline> {
    let ops = OpInfoMap::linked()?;
    require_valid(ops, program)?;
    let declared = |name: &str| program.find(name).and_then(|var| program.root().vars.get(&var));
    let (scope, fed): (Vec<_>, Vec<_>) =
        feeds.iter().cloned().partition(|(name, _)| declared(name).is_some_and(|desc| desc.persistable));
    let kept = |name: &str| {
        let given = scope.iter().find(|(n, _)| *n == name).map(|(_, meta)| meta.clone());
        given.or_else(|| Some(declared(name)?.meta()).filter(|meta| meta.dims.known().is_some()))
    };
    let fetches = fetches(program);
    let fetches: Vec<&str> = fetches.iter().map(|v| program.name(*v)).collect();
    let program = &*cut(program, &fed)?;
    let plan = Plan::new(program, ops, &PlanRequest::new(&fed, &kept, &fetches, false))?;
    let report = PlanReport::new(program, &plan);
    let instruction = |groups: &[FusionGroup]| {
        let nodes = groups.iter().flat_map(|group| &plan.graph.instructions[group.nodes.clone()]);
        let mut ops: Vec<usize> = nodes.map(|node| node.index).collect();
        ops.dedup();
        ops
    };
    let buffers = report.buffers().iter().map(|buffer| {
        let names = buffer.variables.iter().map(|name| texts.id(name)).collect();
        (names, buffer.bytes, buffer.offset, buffer.first, buffer.last)
    });
    Ok(MemoryTimeline {
        buffers: buffers.collect(),
        instructions: plan.instruction_groups().map(|(_, groups)| instruction(groups)).collect(),
        arena: report.arena_bytes(),
        peak: report.live_bytes(),
        dynamic: report.tail().map(String::from),
    })
}

/// The results of a step: the losses, and the gradients of parameters that no operator reads; without a backward pass,
/// all values that no operator reads.
fn fetches(program: &Program) -> Vec<Var> {
    let root = program.root();
    let gradient_of = |v: Var| root.vars.get(&v).and_then(|desc| desc.gradient_of);
    let seeds = || root.ops.iter().filter(|op| op.origin == Origin::Seed).flat_map(OpDesc::writes);
    let losses: Vec<Var> = seeds().filter_map(gradient_of).collect();
    let mut read = vec![false; program.name_count()];
    root.ops.iter().flat_map(OpDesc::reads).for_each(|v| read[v.index()] = true);
    let parameter = |v: Var| root.vars.get(&v).is_some_and(|desc| desc.parameter);
    let wanted = |v: Var| losses.is_empty() || gradient_of(v).is_some_and(parameter);
    let kept = |v: Var| root.vars.get(&v).is_none_or(|desc| desc.persistable);
    let unread =
        root.ops.iter().flat_map(OpDesc::writes).filter(|v| !read[v.index()] && !kept(*v) && wanted(*v));
    let mut found: Vec<Var> = losses.iter().copied().chain(unread).collect();
    let mut seen = vec![false; program.name_count()];
    found.retain(|v| !std::mem::replace(&mut seen[v.index()], true));
    found
}
