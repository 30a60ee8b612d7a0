//! Which operators matter.

use rustc_hash::FxHashSet;

use crate::{BlockId, Error, ErrorKind, GradKind, OpDesc, OpInfoMap, Origin, Program, Result, Var, VarKind};

/// What is to be differentiated with respect to what.
pub(super) struct Question<'a> {
    pub(super) targets: &'a [Var],
    /// The variables whose gradients are asked for.
    pub(super) asked: &'a [Var],
    /// Those that operators write before any operator reads them: the gradient asked for is that of the last value.
    pub(super) computed: FxHashSet<Var>,
    /// Whether operators that do not depend on what is asked for are left out.
    pub(super) only_asked: bool,
}

/// Of these variables, those that operators write before any operator reads them.
pub(super) fn computed(program: &Program, vars: &[Var]) -> FxHashSet<Var> {
    let mut open: FxHashSet<Var> = vars.iter().copied().collect();
    let mut computed = FxHashSet::default();
    for op in &program.root().ops {
        op.reads().for_each(|v| {
            open.remove(&v);
        });
        computed.extend(op.writes().filter(|v| open.remove(v)));
    }
    computed
}

/// Whether an operator that writes a variable leaves nothing of what it held: an array keeps its other elements, and
/// what a sub-block writes it may not write each time.
pub(super) fn replaces(program: &Program, op: &OpDesc, var: Var) -> bool {
    let tensor = program.root().vars.get(&var).is_none_or(|desc| desc.kind == VarKind::Tensor);
    tensor && op.attrs.blocks().next().is_none()
}

/// The operators that the targets depend on through variables that may have a gradient, in program order; where that is
/// asked for, only those that depend on what is asked for, too.
///
/// # Errors
/// Unknown operators, and one on the way from what is asked for that has no gradient.
pub(super) fn find(
    ops: &OpInfoMap,
    program: &Program,
    question: &Question<'_>,
    no_grad: &[bool],
) -> Result<Vec<usize>> {
    let block = program.root();
    let mut kinds = Vec::with_capacity(block.ops.len());
    for (index, op) in block.ops.iter().enumerate() {
        let info = ops.get(&op.ty).map_err(|e| e.at_op(|| program.describe_op(BlockId::ROOT, index, op)))?;
        kinds.push(info.grad_kind());
    }
    let mut reached = vec![false; program.name_count()];
    for var in question.asked.iter().filter(|v| !question.computed.contains(v)) {
        reached[var.index()] = true;
    }
    let mut depends = vec![false; block.ops.len()];
    for (i, op) in block.ops.iter().enumerate() {
        let dead = matches!(kinds[i], GradKind::Zero);
        depends[i] = !dead && op.reads().any(|v| reached[v.index()] && !no_grad[v.index()]);
        for var in op.writes() {
            let held = reached[var.index()] && !replaces(program, op, var);
            let begins = question.computed.contains(&var);
            reached[var.index()] = held || begins || (depends[i] && !no_grad[var.index()]);
        }
    }

    let mut wanted = vec![false; program.name_count()];
    question.targets.iter().for_each(|v| wanted[v.index()] = true);
    let mut path = vec![];
    for (i, op) in block.ops.iter().enumerate().rev() {
        let Some(var) = op.writes().find(|v| wanted[v.index()]) else { continue };
        op.writes().filter(|v| replaces(program, op, *v)).for_each(|v| wanted[v.index()] = false);
        match kinds[i] {
            GradKind::Zero => continue,
            GradKind::None if depends[i] => return Err(without_gradient(program, i, var)),
            GradKind::None => continue,
            _ => op.reads().filter(|v| !no_grad[v.index()]).for_each(|v| wanted[v.index()] = true),
        }
        if !question.only_asked || depends[i] {
            path.push(i);
        }
    }
    path.reverse();
    Ok(path)
}

/// Names the operator, and of which order its gradient would be.
fn without_gradient(program: &Program, index: usize, var: Var) -> Error {
    let ops = &program.root().ops;
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
    let text = format!("it has no gradient{order}, but that of `{name}` has to pass through it");
    let error = Error::new(ErrorKind::NoGradient, text);
    error.at_op(|| program.describe_op(BlockId::ROOT, index, &ops[index]))
}
