//! Relevance analysis: the operators on a path from the requested variables to the targets.

use crate::lower_control_flow::obstacle;
use autobwd_core::{
    __private::{Lookup, internals::*},
    BlockId, Error, ErrorKind, GradKind, OpInfoMap, Origin, Program, Result, Var,
};

/// The targets and the variables of a differentiation.
pub(super) struct GradientRequest<'a> {
    pub(super) block: BlockId,
    pub(super) targets: &'a [Var],
    /// The variables whose gradients are requested.
    pub(super) asked: &'a [Var],
    /// By variable: whether it is requested and written before it is read. The gradient is then the gradient of its
    /// last value.
    pub(super) computed: Vec<bool>,
    /// Whether to leave out operators that do not depend on a requested variable.
    pub(super) only_asked: bool,
}

/// By variable: whether it is one of these and written before it is read.
pub(super) fn computed(program: &Program, vars: &[Var]) -> Vec<bool> {
    let mut computed = vec![false; program.name_count()];
    let mut open = computed.clone();
    vars.iter().for_each(|v| open[v.index()] = true);
    for op in &program.root().ops {
        op.reads().for_each(|v| open[v.index()] = false);
        for var in op.writes() {
            computed[var.index()] |= std::mem::take(&mut open[var.index()]);
        }
    }
    computed
}

/// The operators that the targets depend on through differentiable variables, in program order; with `only_asked`, only
/// those that also depend on a requested variable. Also, by variable: whether the targets depend on its value before
/// the first of these operators.
///
/// # Errors
/// Unknown operators; an operator without gradient on the path from a requested variable.
pub(super) fn find(
    ops: &OpInfoMap,
    program: &Program,
    question: &GradientRequest<'_>,
    no_grad: &[bool],
) -> Result<(Vec<usize>, Vec<bool>)> {
    let id = question.block;
    let block = program.block(id).ok_or_else(|| Error::internal("no such block"))?;
    let (mut kinds, mut infos) = (Vec::with_capacity(block.ops.len()), Lookup::new(ops));
    for (index, op) in block.ops.iter().enumerate() {
        let info = infos.get(op.ty).map_err(|e| e.at_op(|| program.describe_op(id, index, op)))?;
        kinds.push(info.grad_kind());
    }
    let mut reached = vec![false; program.name_count()];
    for var in question.asked {
        reached[var.index()] = !question.computed[var.index()];
    }
    let mut depends = vec![false; block.ops.len()];
    for (i, op) in block.ops.iter().enumerate() {
        let dead = matches!(kinds[i], GradKind::Zero);
        depends[i] = !dead && op.reads().any(|v| reached[v.index()] && !no_grad[v.index()]);
        program.full_overwrites(id, op).for_each(|v| reached[v.index()] = false);
        for at in op.writes().map(Var::index) {
            reached[at] |= question.computed[at] || (depends[i] && !no_grad[at]);
        }
    }

    let mut wanted = vec![false; program.name_count()];
    question.targets.iter().for_each(|v| wanted[v.index()] = true);
    let mut path = vec![];
    for (i, op) in block.ops.iter().enumerate().rev() {
        let Some(var) = op.writes().find(|v| wanted[v.index()]) else { continue };
        program.full_overwrites(id, op).for_each(|v| wanted[v.index()] = false);
        match kinds[i] {
            GradKind::Zero => continue,
            GradKind::None(_) if depends[i] => return Err(without_gradient(ops, program, id, i, var)),
            GradKind::None(_) => continue,
            _ => op.reads().filter(|v| !no_grad[v.index()]).for_each(|v| wanted[v.index()] = true),
        }
        if !question.only_asked || depends[i] {
            path.push(i);
        }
    }
    path.reverse();
    Ok((path, wanted))
}

/// Names the operator, and the order of the missing gradient.
fn without_gradient(infos: &OpInfoMap, program: &Program, block: BlockId, index: usize, var: Var) -> Error {
    let ops = program.block(block).map_or(&[][..], |block| &block.ops);
    let (mut at, mut order) = (index, 1);
    while let Origin::Gradient { of } = ops[at].origin
        && of < at
    {
        (at, order) = (of, order + 1);
    }
    let order = match order {
        1 => String::new(),
        2 => ", which would be of second order".into(),
        3 => ", which would be of third order".into(),
        n => format!(", which would be of {n}th order"),
    };
    let name = program.name(var);
    let is_derived =
        |of: usize| infos.get(&ops[of].ty).is_ok_and(|info| matches!(info.grad_kind(), GradKind::Derived(_)));
    let reason = infos.get(&ops[index].ty).ok().and_then(|info| match info.grad_kind() {
        GradKind::None(reason) => reason,
        _ => None,
    });
    let why = match ops[index].origin {
        _ if reason.is_some() => reason.map(Into::into),
        Origin::Gradient { of } if of < index && is_derived(of) => Some(format!(
            "gradients are derived from a formula at most three times: declare the gradient of `{}` as an operator \
             whose own gradient is derived, or compose it of other operators",
            ops[at].ty
        )),
        _ => obstacle(infos, program, block, index),
    };
    let obstacle = why.map_or(String::new(), |why| format!("; {why}"));
    let text = format!(
        "the operator has no gradient{order}, but the gradient of `{name}` passes through it{obstacle}"
    );
    let error = Error::new(ErrorKind::NoGradient, text);
    error.at_op(|| program.describe_op(block, index, &ops[index]))
}
