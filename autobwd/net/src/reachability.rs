//! Reachability: the variables that have a gradient, as far as the operators determine it.

use std::collections::HashMap;

use rustc_hash::FxHashSet;

use super::{Operator, RnnOp};
use autobwd_core::{
    __private::{did_you_mean, internals::*},
    Error, ErrorKind, GradKind, OpInfoMap, Result,
};

/// Variables by name.
pub(super) type VariableNames<'a> = FxHashSet<&'a str>;

/// Rejects names that the tree, steps included, does not have.
pub(super) fn check_known(tree: &Operator, names: &[&str]) -> Result<()> {
    let mut known = VariableNames::default();
    collect(tree, &mut known);
    names.iter().find(|name| !known.contains(*name)).map_or(Ok(()), |name| Err(unknown(name, known)))
}

/// The error of a name that no variable has.
pub(super) fn unknown<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Error {
    let hint = did_you_mean(name, known);
    Error::new(ErrorKind::UnknownVar, format!("the net has no variable `{name}`{hint}"))
}

fn collect<'a>(tree: &'a Operator, known: &mut VariableNames<'a>) {
    tree.each(&mut |op| {
        known.extend(op.inputs().into_iter().chain(op.outputs()));
        if let Operator::Rnn(rnn) = op {
            known.extend(rnn.locals());
        }
        op.steps().into_iter().flatten().for_each(|op| collect(op, known));
    });
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
pub(super) fn reach<'a>(
    ops: &OpInfoMap,
    tree: &'a [Operator],
    no_grad: &VariableNames<'_>,
    reached: &mut VariableNames<'a>,
) -> Result<()> {
    for op in tree {
        let written = match op {
            Operator::Net(net) => {
                reach(ops, net.ops(), no_grad, reached)?;
                continue;
            }
            Operator::Rnn(rnn) => {
                let inner = reach_step(ops, rnn, no_grad, reached)?;
                let outputs = rnn.outputs.iter().filter(|out| inner.contains(&*out.value));
                outputs.map(|out| &*out.sequence).collect()
            }
            _ => {
                let dead = match op {
                    Operator::Op(op) => {
                        let info = ops.get(&op.ty).map_err(|e| e.at_op(|| op.describe()))?;
                        matches!(info.grad_kind(), GradKind::Zero)
                    }
                    _ => false,
                };
                let depends = !dead && op.inputs().into_iter().any(|name| reached.contains(name));
                if depends { op.outputs() } else { vec![] }
            }
        };
        reached.extend(written.into_iter().filter(|name| !no_grad.contains(name)));
    }
    Ok(())
}

/// The same for the names of a step net, in any of the steps.
///
/// # Errors
/// Unknown operators.
pub(super) fn reach_step<'a>(
    ops: &OpInfoMap,
    rnn: &'a RnnOp,
    no_grad: &VariableNames<'_>,
    outer: &VariableNames<'_>,
) -> Result<VariableNames<'a>> {
    let mut inner: VariableNames<'a> = rnn.shared().into_iter().filter(|name| outer.contains(name)).collect();
    loop {
        let before = inner.len();
        for start in rnn.starts.iter().filter(|start| !no_grad.contains(&*start.name)) {
            let arrives = start.outer.as_deref().is_some_and(|name| outer.contains(name))
                || start.state.as_deref().is_some_and(|name| inner.contains(name));
            if arrives {
                inner.insert(&start.name);
            }
        }
        reach(ops, rnn.step().ops(), no_grad, &mut inner)?;
        if inner.len() == before {
            return Ok(inner);
        }
    }
}
