//! Operators whose inputs are constants are run once.

use std::collections::HashSet;

use autobwd::{Executor, OpDesc, OpInfoMap, Result, Scope, op::Meaning, program::Var};

use super::Frozen;

/// Operators without a formula whose results depend on their inputs alone.
const MOVES: [&str; 16] = [
    "assign",
    "cast",
    "concat",
    "expand_v2",
    "flatten_contiguous_range",
    "matmul_v2",
    "reduce_mean",
    "reduce_sum",
    "reshape2",
    "slice",
    "split",
    "squeeze2",
    "stack",
    "tile",
    "transpose2",
    "unsqueeze2",
];

/// Operators without inputs whose results depend on their attributes alone.
const SOURCES: [&str; 2] = ["assign_value", "fill_constant"];

/// Computes the values of operators of the main block that depend on parameters alone, and keeps the floating point numbers that
/// others read. Shape rules must know integers, which stay as they are.
pub(super) fn fold(frozen: &mut Frozen<'_>, fetched: &[Var]) -> Result<()> {
    let program = &frozen.program;
    let mut folded = known(frozen)?;
    let is_float = |var: &Var| program.root().vars.get(var).is_some_and(|desc| desc.dtype.is_float());
    let ops = || program.root().ops.iter().enumerate();
    let wanted = loop {
        let rest = ops().filter(|(i, _)| !folded.contains(i));
        let read: HashSet<Var> = rest.flat_map(|(_, op)| op.reads()).chain(fetched.iter().copied()).collect();
        let of_folded = ops().filter(|(i, _)| folded.contains(i));
        let wanted: Vec<(usize, Var)> = of_folded
            .flat_map(|(i, op)| op.writes().map(move |var| (i, var)))
            .filter(|(_, var)| read.contains(var))
            .collect();
        let kept: Vec<usize> = wanted.iter().filter(|(_, var)| !is_float(var)).map(|(i, _)| *i).collect();
        if kept.is_empty() {
            break wanted;
        }
        folded.retain(|i| !kept.contains(i));
    };
    if folded.is_empty() {
        return Ok(());
    }
    let mut part = program.clone();
    part.root_mut().ops = ops().filter(|(i, _)| folded.contains(i)).map(|(_, op)| op.clone()).collect();
    let mut scope = Scope::new();
    for var in part.root().ops.iter().flat_map(OpDesc::reads) {
        if let Some(value) = frozen.value(var) {
            scope.set(program.name(var), value.clone());
        }
    }
    let names: Vec<&str> = wanted.iter().map(|(_, var)| program.name(*var)).collect();
    let values = Executor::with_threads(1).run(&part, &mut scope, &[], &names)?;
    let mut at = 0..;
    frozen.program.root_mut().ops.retain(|_| !folded.contains(&at.next().unwrap_or_default()));
    for ((_, var), value) in wanted.into_iter().zip(values) {
        frozen.declare_constant(var, value);
    }
    Ok(())
}

/// The operators of the main block whose results depend on parameters alone.
fn known(frozen: &Frozen<'_>) -> Result<HashSet<usize>> {
    let (map, program) = (OpInfoMap::linked()?, &frozen.program);
    let mut written: HashSet<Var> = HashSet::new();
    let all = program.blocks().iter().flat_map(|block| &block.ops);
    let twice: HashSet<Var> = all.flat_map(OpDesc::writes).filter(|var| !written.insert(*var)).collect();
    let inner: HashSet<Var> = program.blocks()[1..]
        .iter()
        .flat_map(|block| block.ops.iter().flat_map(|op| op.reads().chain(op.writes())))
        .collect();
    let (mut values, mut known): (HashSet<Var>, HashSet<usize>) = Default::default();
    for (i, op) in program.root().ops.iter().enumerate() {
        let is_source = op.reads().next().is_none();
        let is_pure = match is_source {
            true => SOURCES.contains(&&*op.ty),
            false => {
                MOVES.contains(&&*op.ty)
                    || map.get(&op.ty).is_ok_and(|info| info.meaning() == Meaning::ByFormula)
            }
        };
        let is_known = |var: Var| values.contains(&var) || frozen.value(var).is_some();
        let is_free =
            |var: Var| !twice.contains(&var) && !inner.contains(&var) && frozen.value(var).is_none();
        if is_pure
            && op.reads().all(is_known)
            && op.writes().all(is_free)
            && op.attrs.blocks().next().is_none()
        {
            values.extend(op.writes());
            known.insert(i);
        }
    }
    Ok(known)
}
