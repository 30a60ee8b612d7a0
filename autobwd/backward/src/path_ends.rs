//! The places where the paths of gradients end.

use std::iter;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    flow::listed,
    report::{MissingGradient, OpLocation, PathEnd, StopReason},
};
use autobwd_core::{
    __private::internals::*, BlockId, CarriedInit, GradKind, OpDesc, OpInfoMap, Program, StepCount, Var,
};

/// The marked variables that lead to a target and are not named by `missing`. Variables of sub-blocks have their
/// block.
pub(super) fn partial(
    program: &Program,
    targets: &[Var],
    marked: &[Var],
    within: &[(BlockId, Var)],
    missing: &[MissingGradient],
) -> Vec<PathEnd> {
    let is_named = |var: Var| {
        let name = program.name(var);
        missing.iter().any(|m| m.name == name || m.cut.is_at(name))
    };
    if marked.is_empty() && within.is_empty() {
        return vec![];
    }
    // By marked variable of a sub-block.
    let mut writers: FxHashMap<(BlockId, Var), OpLocation> = FxHashMap::default();
    for id in within.iter().map(|(block, _)| *block).collect::<FxHashSet<_>>() {
        for (i, op) in program.block(id).iter().flat_map(|block| block.ops.iter().enumerate()) {
            writers.extend(op.writes().map(|var| ((id, var), OpLocation::of(i, op))));
        }
    }
    let end = |var: Var, writer: Option<OpLocation>| PathEnd::Variable {
        name: program.name(var).to_string(),
        stop: StopReason::StopGradient,
        writer,
    };
    // By sub-block of the root block.
    let mut cuts: FxHashMap<BlockId, Vec<(BlockId, Var)>> = FxHashMap::default();
    for (block, var) in within.iter().filter(|(_, var)| !is_named(*var)) {
        let ancestors = iter::successors(Some(*block), |at| program.block(*at)?.parent);
        let outermost = ancestors.take_while(|at| *at != BlockId::ROOT).last();
        outermost.into_iter().for_each(|outermost| cuts.entry(outermost).or_default().push((*block, *var)));
    }
    let n = program.name_count();
    let (mut leads, mut is_marked, mut found) = (vec![false; n], vec![false; n], vec![]);
    targets.iter().for_each(|v| leads[v.index()] = true);
    marked.iter().for_each(|v| is_marked[v.index()] = true);
    for (i, op) in program.root().ops.iter().enumerate().rev() {
        let mut on_path = false;
        for var in op.writes().filter(|v| leads[v.index()]) {
            on_path = true;
            if std::mem::take(&mut is_marked[var.index()]) && !is_named(var) {
                found.push(end(var, Some(OpLocation::of(i, op))));
            }
        }
        let cuts = op.attrs.blocks().filter(|_| on_path).filter_map(|block| cuts.remove(&block)).flatten();
        found.extend(cuts.map(|(block, var)| PathEnd::Block {
            op: OpLocation::of(i, op),
            within: Box::new(end(var, writers.get(&(block, var)).copied())),
        }));
        op.reads().filter(|_| on_path).for_each(|v| leads[v.index()] = true);
    }
    found.reverse();
    found
}

/// The first place in a sub-block of `owner` where all gradients of values computed from `inputs` may end: a variable
/// marked `stop_gradient`, else an operator that passes no gradient on, else integers.
fn end_within(
    program: &Program,
    (owner, block): (&OpDesc, BlockId),
    inputs: &FxHashSet<Var>,
    ops: Option<&OpInfoMap>,
) -> Option<PathEnd> {
    let own = program.block(block)?;
    let call = ops.and_then(|ops| ops.get(&owner.ty).ok()?.call(owner, program).ok()?);
    // Pairs of a value and its name elsewhere in the block: at the start, and at the start of the next step.
    let mut renamed: Vec<(Var, Var)> = vec![];
    if let Some(call) = call.filter(|call| call.block == block) {
        renamed.extend(call.slices.iter().map(|(outer, inner, _)| (*outer, *inner)));
        for carried in &call.carried {
            if let CarriedInit::Value(first, _) = carried.first {
                renamed.push((first, carried.start));
            }
            if !matches!(call.steps, StepCount::If(_)) {
                renamed.push((carried.end, carried.start));
            }
        }
    }
    let mut reached = inputs.clone();
    let reads = |op: &OpDesc, reached: &FxHashSet<Var>| op.reads().find(|v| reached.contains(v));
    // A later step goes on with what an earlier one has reached.
    loop {
        let known = reached.len();
        for (value, name) in &renamed {
            reached.extend(reached.contains(value).then_some(*name));
        }
        let readers = own.ops.iter();
        readers.for_each(|op| {
            reached.extend(op.writes().filter(|_| reads(op, &reached).is_some()).collect::<Vec<_>>())
        });
        if reached.len() == known {
            break;
        }
    }
    let on_path = || own.ops.iter().enumerate().filter_map(|(i, op)| Some((i, op, reads(op, &reached)?)));
    let stopped = |of_dtype: bool| {
        on_path().find_map(|(i, op, _)| {
            let stop = |var: Var| {
                let desc = own.vars.get(&var)?;
                match desc.dtype.is_float() {
                    true => (desc.stop_gradient && !of_dtype).then_some(StopReason::StopGradient),
                    false => of_dtype.then_some(StopReason::DType(desc.dtype)),
                }
            };
            let (var, stop) = op.writes().find_map(|var| Some((var, stop(var)?)))?;
            let writer = Some(OpLocation::of(i, op));
            Some(PathEnd::Variable { name: program.name(var).to_string(), stop, writer })
        })
    };
    let inner = || {
        on_path().find_map(|(i, op, _)| {
            let within = op.attrs.blocks().find_map(|id| end_within(program, (op, id), &reached, ops))?;
            Some(PathEnd::Block { op: OpLocation::of(i, op), within: Box::new(within) })
        })
    };
    let zero = || {
        on_path().find(|(_, op, _)| is_zero(ops, op)).map(|(i, op, read)| PathEnd::Operator {
            op: OpLocation::of(i, op),
            slot: op.inputs.slot_of(read).unwrap_or("".into()),
            name: program.name(read).to_string(),
        })
    };
    stopped(false).or_else(inner).or_else(zero).or_else(|| stopped(true))
}

/// The place where the path of a gradient ends.
#[derive(Clone, Copy)]
struct ForwardEnd {
    /// The operator that passes no gradient on.
    reader: usize,
    /// Its input without gradient, or a variable without gradient that it reads or writes.
    at: Var,
    /// Whether operator or variable never have a gradient; else the gradient may just not have been needed.
    certain: bool,
}

/// Whether the gradients of an operator are known to be zero for any upstream gradient.
fn is_zero(ops: Option<&OpInfoMap>, op: &OpDesc) -> bool {
    let info = ops.and_then(|ops| ops.get(&op.ty).ok());
    info.is_some_and(|info| matches!(info.grad_kind(), GradKind::Zero))
}

/// The places where the paths of variables without gradient end. `no_grad` says, by variable, whether it was excluded;
/// `having` are those with a gradient. Without `ops`, operators whose gradients are always zero are not known, nor what
/// loops carry from step to step under another name.
pub fn missing(
    program: &Program,
    targets: &[Var],
    no_grad: &[bool],
    having: impl Iterator<Item = Var>,
    ops: Option<&OpInfoMap>,
    asked: &[Var],
) -> Vec<MissingGradient> {
    if asked.is_empty() {
        return vec![];
    }
    let (root, n) = (program.root(), program.name_count());
    let (mut leads, mut produced) = (vec![false; n], vec![false; n]);
    targets.iter().for_each(|v| leads[v.index()] = true);
    having.chain(targets.iter().copied()).for_each(|v| produced[v.index()] = true);
    let stop = |var: Var| match root.vars.get(&var) {
        Some(desc) if !desc.dtype.is_float() => Some(StopReason::DType(desc.dtype)),
        Some(desc) if desc.stop_gradient => Some(StopReason::StopGradient),
        _ => no_grad.get(var.index()).is_some_and(|no| *no).then_some(StopReason::NoGradSet),
    };
    // By variable that leads to a target: the place where its gradient ends.
    let mut ends: Vec<Option<ForwardEnd>> = vec![None; n];
    let mut writer: Vec<Option<usize>> = vec![None; n];
    for (i, op) in root.ops.iter().enumerate().rev() {
        op.writes().for_each(|v| writer[v.index()] = Some(i));
        let on_path = || op.writes().filter(|v| leads[v.index()]);
        if on_path().next().is_none() {
            continue;
        }
        let stopped = on_path().find(|v| stop(*v).is_some());
        let (zero, arrives) = (is_zero(ops, op), on_path().any(|v| produced[v.index()]));
        let behind = on_path().filter_map(|v| ends[v.index()]).max_by_key(|end| end.certain);
        for v in op.reads() {
            leads[v.index()] = true;
            let end = match stopped {
                Some(at) => Some(ForwardEnd { reader: i, at, certain: true }),
                None if zero || arrives => Some(ForwardEnd { reader: i, at: v, certain: zero }),
                None => behind,
            };
            let known = &mut ends[v.index()];
            let better = |end: &ForwardEnd| end.certain || !known.is_some_and(|known| known.certain);
            if let Some(end) = end.filter(better).filter(|_| !produced[v.index()]) {
                *known = Some(end);
            }
        }
    }
    let name = |var: Var| program.name(var).to_string();
    let cut = |var: Var| {
        if !leads[var.index()] {
            return PathEnd::NoPath;
        }
        let at = |var: Var, stop: StopReason| {
            let writer = writer[var.index()].map(|i| OpLocation::of(i, &root.ops[i]));
            PathEnd::Variable { name: name(var), stop, writer }
        };
        match (stop(var), ends[var.index()]) {
            (Some(stop), _) => at(var, stop),
            (None, None) => PathEnd::NoPath,
            (None, Some(ForwardEnd { reader, at: input, .. })) => {
                let op = &root.ops[reader];
                let slot = op.inputs.slot_of(input).unwrap_or("".into());
                let location = OpLocation::of(reader, op);
                let passes_none = || {
                    let inputs = FxHashSet::from_iter([input]);
                    let within =
                        op.attrs.blocks().find_map(|block| end_within(program, (op, block), &inputs, ops));
                    match within {
                        Some(within) => PathEnd::Block { op: location, within: Box::new(within) },
                        None => PathEnd::Operator { op: location, slot, name: name(input) },
                    }
                };
                stop(input).map_or_else(passes_none, |stop| at(input, stop))
            }
        }
    };
    let targets = listed(targets.iter().map(|v| format!("`{}`", program.name(*v))), targets.len());
    asked
        .iter()
        .map(|v| MissingGradient { var: *v, name: name(*v), targets: targets.clone(), cut: cut(*v) })
        .collect()
}
