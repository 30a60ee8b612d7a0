//! Which operators matter.

use crate::{BlockId, Error, ErrorKind, GradKind, OpInfoMap, Program, Result, Var};

/// The operators that the targets depend on through variables that may have a gradient, in program order; with
/// `inputs`, only those that depend on one of these, too.
///
/// # Errors
/// Unknown operators, and one on the way from a parameter or input that has no gradient.
pub(super) fn find(
    ops: &OpInfoMap,
    program: &Program,
    targets: &[Var],
    inputs: Option<&[Var]>,
    no_grad: &[bool],
) -> Result<Vec<usize>> {
    let block = program.root();
    let mut kinds = vec![];
    for (index, op) in block.ops.iter().enumerate() {
        let info = ops.get(&op.ty).map_err(|e| e.at_op(|| program.describe_op(BlockId::ROOT, index, op)))?;
        kinds.push(info.grad_kind());
    }
    // Everything may lead back to a parameter or to what was asked for; an operator without gradient matters only there.
    let mut reached = vec![false; program.name_count()];
    match inputs {
        Some(inputs) => inputs.iter().for_each(|v| reached[v.index()] = true),
        None => program.parameters().for_each(|v| reached[v.index()] = true),
    }
    let mut depends = vec![false; block.ops.len()];
    for (i, op) in block.ops.iter().enumerate() {
        let dead = matches!(kinds[i], GradKind::Zero);
        depends[i] = !dead && op.reads().any(|v| reached[v.index()] && !no_grad[v.index()]);
        if depends[i] {
            op.writes().filter(|v| !no_grad[v.index()]).for_each(|v| reached[v.index()] = true);
        }
    }

    let mut wanted = vec![false; program.name_count()];
    targets.iter().for_each(|v| wanted[v.index()] = true);
    let mut path = vec![];
    for (i, op) in block.ops.iter().enumerate().rev() {
        let relevant = op.writes().any(|v| wanted[v.index()]) && !matches!(kinds[i], GradKind::Zero);
        if !relevant {
            continue;
        }
        if matches!(kinds[i], GradKind::None) {
            if depends[i] {
                let var = op.writes().find(|v| wanted[v.index()]).unwrap_or(Var::EMPTY);
                let text =
                    format!("it has no gradient, but that of `{}` has to pass through it", program.name(var));
                let error = Error::new(ErrorKind::NoGradient, text);
                return Err(error.at_op(|| program.describe_op(BlockId::ROOT, i, op)));
            }
            continue;
        }
        op.reads().filter(|v| !no_grad[v.index()]).for_each(|v| wanted[v.index()] = true);
        if inputs.is_none() || depends[i] {
            path.push(i);
        }
    }
    path.reverse();
    Ok(path)
}

/// Outputs of operators on the path that nothing on it reads have no gradient either.
pub(super) fn cut_unread(program: &Program, targets: &[Var], path: &[usize], no_grad: &mut [bool]) {
    let block = program.root();
    let mut live = vec![false; program.name_count()];
    targets.iter().for_each(|v| live[v.index()] = true);
    let mut unread = vec![];
    for op in path.iter().rev().map(|i| &block.ops[*i]) {
        for var in op.writes() {
            let own_input = op.reads().any(|v| v == var);
            if !live[var.index()] && !own_input {
                unread.push(var);
            }
        }
        op.reads().filter(|v| !no_grad[v.index()]).for_each(|v| live[v.index()] = true);
    }
    unread.into_iter().for_each(|v| no_grad[v.index()] = true);
}
