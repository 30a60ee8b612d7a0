//! The gradient operators of a path, in reverse.

use super::names::GradNames;
use crate::{
    BlockId, Error, ErrorKind, GradCx, GradKind, Name, OpDesc, OpInfo, OpInfoMap, Origin, Program, Result,
    Var,
};

/// Asks every operator of the path, from the last to the first, for the operators of its gradient.
///
/// # Errors
/// A rule that emits an unknown operator or illegal slots; a gradient that needs a value that is overwritten later.
pub(super) fn emit(
    ops: &OpInfoMap,
    program: &mut Program,
    path: &[usize],
    no_grad: &[bool],
    names: &mut GradNames,
) -> Result<Vec<OpDesc>> {
    let writers = Writers::of(program);
    let mut emitted = vec![];
    for &index in path.iter().rev() {
        let fwd = program.root().ops[index].clone();
        let info = ops.get(&fwd.ty)?;
        let current: Vec<(Var, Var)> = fwd.writes().map(|v| (v, names.of_output(v))).collect();
        for var in fwd.writes() {
            if writers.is_redefinition(&fwd, var) && !keeps_name(info, &fwd, var) {
                names.start_older(program, var);
            }
        }
        let differentiable = |program: &Program, var: Var| {
            !no_grad.get(var.index()).copied().unwrap_or(false)
                && program.root().vars.get(&var).is_none_or(|desc| desc.dtype.is_float())
        };
        let wanted: Vec<bool> =
            fwd.inputs.args().map(|v| v != Var::EMPTY && differentiable(program, v)).collect();
        let is_wanted = |var: Var| fwd.inputs.args().zip(&wanted).any(|(v, wanted)| v == var && *wanted);
        let of_output = |var: Var| {
            let own = current.iter().find(|(v, _)| *v == var);
            own.map_or_else(|| names.of_output(var), |(_, grad)| *grad)
        };
        let of_input = |var: Var| names.of_input(var);
        let arrives = |var: Var| !no_grad.get(var.index()).copied().unwrap_or(false);
        let mut g = GradCx::new(&fwd, program, &of_output, &of_input, &is_wanted, &arrives);
        let outcome = info.emit_grad(&mut g);
        let own = g.into_emitted();
        let checked = outcome.and_then(|()| {
            own.iter().try_for_each(|op| check(ops, &fwd, op))?;
            reads_no_sum(program, names, &fwd, &own)?;
            own.iter().try_for_each(|op| writers.check(ops, program, index, &fwd, op))
        });
        checked.map_err(|e| e.at_op(|| program.describe_op(BlockId::ROOT, index, &fwd)))?;
        emitted.extend(own.into_iter().map(|op| OpDesc {
            site: fwd.site,
            origin: Origin::Gradient { of: index },
            ..op
        }));
    }
    Ok(emitted)
}

/// Whether an operator that overwrites its own input may give the input's gradient the output's name: only a single
/// gradient operator that writes it once surely reads the one before it writes the other.
fn keeps_name(info: &OpInfo, fwd: &OpDesc, var: Var) -> bool {
    fwd.reads().filter(|v| *v == var).count() == 1 && matches!(info.grad_kind(), GradKind::Operator(_))
}

fn check(ops: &OpInfoMap, fwd: &OpDesc, op: &OpDesc) -> Result<()> {
    let place = |e: Error| {
        Error::new(e.kind(), format!("the gradient rule of `{}` emits `{}`: {}", fwd.ty, op.ty, e.message()))
    };
    let info = ops.get(&op.ty).map_err(place)?;
    // An operator with nothing to write is dropped later; its slots may be empty.
    if op.writes().next().is_none() { Ok(()) } else { info.check(op).map_err(place) }
}

/// Refuses a rule that writes a gradient and then reads it: what it would get is the sum of all contributions.
fn reads_no_sum(program: &Program, names: &GradNames, fwd: &OpDesc, own: &[OpDesc]) -> Result<()> {
    for (i, op) in own.iter().enumerate() {
        let earlier = |v: &Var| own[..i].iter().any(|op| op.writes().any(|w| w == *v));
        if let Some(grad) = op.reads().find(|v| names.base(*v).is_some() && earlier(v)) {
            let text = format!(
                "the gradient rule of `{}` reads `{}` after writing it; others may contribute to it, use a fresh variable",
                fwd.ty,
                program.name(grad)
            );
            return Err(Error::new(ErrorKind::NoGradient, text));
        }
    }
    Ok(())
}

/// Which operators write each variable.
struct Writers {
    last: Vec<Option<usize>>,
    count: Vec<u32>,
}

impl Writers {
    fn of(program: &Program) -> Writers {
        let n = program.name_count();
        let mut writers = Writers { last: vec![None; n], count: vec![0; n] };
        for (i, op) in program.root().ops.iter().enumerate() {
            let again = matches!(op.origin, Origin::Recompute { .. });
            for var in op.writes() {
                // What is computed again has the value that it had.
                if !again || writers.last[var.index()].is_none() {
                    writers.last[var.index()] = Some(i);
                }
                writers.count[var.index()] += 1;
            }
        }
        writers
    }

    fn last(&self, var: Var) -> Option<usize> {
        self.last.get(var.index()).copied().flatten()
    }

    /// Whether there is an older definition of what `fwd` writes.
    fn is_redefinition(&self, fwd: &OpDesc, var: Var) -> bool {
        self.count.get(var.index()).is_some_and(|n| *n > 1) || fwd.reads().any(|v| v == var)
    }

    /// Refuses a gradient operator that would read a forward value after it has been overwritten.
    fn check(
        &self,
        ops: &OpInfoMap,
        program: &Program,
        index: usize,
        fwd: &OpDesc,
        op: &OpDesc,
    ) -> Result<()> {
        let schema = ops.get(&op.ty)?.schema();
        for (slot, args) in op.inputs.iter() {
            if schema.input(&slot).is_some_and(|s| s.shape_only) {
                continue;
            }
            for var in args.iter().copied() {
                let read = fwd.reads().any(|v| v == var);
                let written = fwd.writes().any(|v| v == var);
                let overwritten = match (read, written, self.last(var)) {
                    (false, false, _) | (_, _, None) => false,
                    // Its own output, or an input: whoever comes later changes it. As its own input, it does so itself.
                    (_, true, Some(last)) => last > index || is_input_slot(fwd, slot, var),
                    (true, false, Some(last)) => last > index,
                };
                if overwritten {
                    // As an input, the value before this operator; as an output, the one that it wrote.
                    let upto = if is_input_slot(fwd, slot, var) { index } else { index + 1 };
                    return Err(self.refuse(program, upto, var));
                }
            }
        }
        Ok(())
    }

    fn refuse(&self, program: &Program, upto: usize, var: Var) -> Error {
        let name = program.name(var);
        let writers = program.root().ops.iter().enumerate().filter(|(_, op)| op.writes().any(|v| v == var));
        let mut version = 0;
        let mut list = vec![];
        for (n, (i, op)) in writers.enumerate() {
            if i < upto {
                version = n + 1;
            }
            let site = op.site.map(|s| format!(", added at {s}")).unwrap_or_default();
            list.push(format!("version {}: operator {i} `{}`{site}", n + 1, op.ty));
        }
        let text = format!(
            "its gradient needs version {version} of `{name}`, which is overwritten before the backward part runs \
             ({}); write to another variable",
            list.join("; ")
        );
        Error::new(ErrorKind::NoGradient, text)
    }
}

/// Whether a gradient operator reads `var` as the forward operator's input (rather than as its output).
fn is_input_slot(fwd: &OpDesc, slot: Name, var: Var) -> bool {
    fwd.inputs.get(&slot).contains(&var)
}
