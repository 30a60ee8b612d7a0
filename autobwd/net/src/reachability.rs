//! Reachability: the variables that have a gradient, as far as the operators determine it.

use std::collections::HashMap;

use rustc_hash::FxHashSet;

use super::{Operator, RnnOp};
use autobwd_core::{
    __private::{did_you_mean, internals::*},
    Error, ErrorKind, GradKind, OpInfoMap, Result,
};

/// Variables by name.
pub(super) type VariableNames = FxHashSet<String>;

/// Rejects names that the tree, steps included, does not have.
pub(super) fn check_known(tree: &Operator, names: &[&str]) -> Result<()> {
    let mut known = FxHashSet::default();
    collect(tree, &mut known);
    match names.iter().find(|name| !known.contains(*name)) {
        None => Ok(()),
        Some(name) => {
            let hint = did_you_mean(name, known.iter().copied());
            Err(Error::new(ErrorKind::UnknownVar, format!("the net has no variable `{name}`{hint}")))
        }
    }
}

fn collect<'a>(tree: &'a Operator, known: &mut FxHashSet<&'a str>) {
    let mut visit = |op: &'a Operator| {
        known.extend(op.inputs());
        known.extend(op.outputs());
        if let Operator::Rnn(rnn) = op {
            known.extend(rnn.step_inputs().iter().map(|link| &*link.inner));
            known.extend(rnn.memories().iter().map(|memory| &*memory.pre));
        }
        op.steps().into_iter().flatten().for_each(|op| collect(op, known));
    };
    tree.each(&mut visit);
}

/// Rejects operators that overwrite an earlier input or output: its gradient may need the older value.
pub(super) fn check_written_once(tree: &[Operator]) -> Result<()> {
    let mut seen: HashMap<&str, (&str, &Operator)> = HashMap::new();
    let mut outcome = Ok(());
    let mut visit = |op| {
        for name in Operator::inputs(op) {
            seen.entry(name).or_insert(("reads", op));
        }
        for name in op.outputs() {
            if let Some((verb, other)) = seen.insert(name, ("writes", op))
                && outcome.is_ok()
            {
                let other = if std::ptr::eq(other, op) { "it".into() } else { other.describe().to_string() };
                let text = format!(
                    "the operator overwrites `{name}`, which {other} {verb}: gradients may need the older value; \
                     write to another variable"
                );
                outcome = Err(Error::new(ErrorKind::NoGradient, text).at_op(|| op.describe()));
            }
        }
        if outcome.is_ok() {
            outcome = op.steps().into_iter().try_for_each(check_written_once);
        }
    };
    tree.iter().for_each(|op| op.each(&mut visit));
    outcome
}

/// Adds the variables that depend on those reached so far, except those in `no_grad`.
///
/// # Errors
/// Unknown operators.
pub(super) fn reach(
    ops: &OpInfoMap,
    tree: &[Operator],
    no_grad: &VariableNames,
    reached: &mut VariableNames,
) -> Result<()> {
    for op in tree {
        match op {
            Operator::Nop => {}
            Operator::Net(net) => reach(ops, net.ops(), no_grad, reached)?,
            Operator::Rnn(rnn) => {
                let inner = reach_step(ops, rnn, no_grad, reached)?;
                let links = rnn.step_outputs().iter().filter(|link| inner.contains(&link.inner));
                let outer = links.map(|link| link.outer.clone());
                reached.extend(outer.filter(|name| !no_grad.contains(name)));
            }
            Operator::Op(_) | Operator::RnnGrad(_) => {
                let dead = match op {
                    Operator::Op(op) => {
                        let info = ops.get(&op.ty).map_err(|e| e.at_op(|| op.describe()))?;
                        matches!(info.grad_kind(), GradKind::Zero)
                    }
                    _ => false,
                };
                if !dead && op.inputs().into_iter().any(|name| reached.contains(name)) {
                    let written = op.outputs().into_iter().filter(|name| !no_grad.contains(*name));
                    reached.extend(written.map(String::from));
                }
            }
        }
    }
    Ok(())
}

/// The same for the names of a step net, in any of the steps.
///
/// # Errors
/// Unknown operators.
pub(super) fn reach_step(
    ops: &OpInfoMap,
    rnn: &RnnOp,
    no_grad: &VariableNames,
    outer: &VariableNames,
) -> Result<VariableNames> {
    let mut inner: VariableNames =
        rnn.shared().into_iter().filter(|n| outer.contains(*n)).map(String::from).collect();
    let links = rnn.step_inputs().iter().filter(|link| outer.contains(&link.outer));
    let boots = rnn.memories().iter().filter(|memory| outer.contains(&memory.boot));
    let given = links.map(|link| &link.inner).chain(boots.map(|memory| &memory.pre));
    inner.extend(given.filter(|name| !no_grad.contains(*name)).cloned());
    loop {
        reach(ops, rnn.step().ops(), no_grad, &mut inner)?;
        let before = inner.len();
        for memory in rnn.memories() {
            if inner.contains(&memory.state) && !no_grad.contains(&memory.pre) {
                inner.insert(memory.pre.clone());
            }
        }
        if inner.len() == before {
            return Ok(inner);
        }
    }
}
