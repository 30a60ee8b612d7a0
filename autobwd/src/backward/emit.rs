//! The gradient operators of a path, in reverse.

use smallvec::SmallVec;

use super::names::GradNames;
use crate::{
    BlockId, Error, ErrorKind, GradCx, GradKind, OpDesc, OpInfo, OpInfoMap, Origin, Program, Result, Var,
};

/// Asks every operator of the path, from the last to the first, for the operators of its gradient, which go behind
/// those in `emitted`.
///
/// # Errors
/// A rule that emits an unknown operator or illegal slots; a gradient that needs a value that is overwritten later.
pub(super) fn emit(
    ops: &OpInfoMap,
    program: &mut Program,
    path: &[usize],
    no_grad: &[bool],
    names: &mut GradNames,
    emitted: &mut Vec<OpDesc>,
) -> Result<()> {
    // Out of the program, so that rules can read operators while they make names.
    let forward = std::mem::take(&mut program.root_mut().ops);
    let mut rules =
        Rules { ops, program, forward: &forward, no_grad, names, emitted, writers: Writers::default() };
    let outcome = rules.emit(path);
    program.root_mut().ops = forward;
    outcome
}

struct Rules<'a> {
    ops: &'a OpInfoMap,
    program: &'a mut Program,
    forward: &'a [OpDesc],
    no_grad: &'a [bool],
    names: &'a mut GradNames,
    emitted: &'a mut Vec<OpDesc>,
    writers: Writers,
}

impl Rules<'_> {
    fn emit(&mut self, path: &[usize]) -> Result<()> {
        self.writers = Writers::of(self.forward, self.program.name_count());
        for &index in path.iter().rev() {
            let forward = self.forward;
            let fwd = &forward[index];
            let own = self.emitted.len();
            self.ask(fwd)
                .and_then(|(info, unchanged)| self.judge(index, info, own, &unchanged))
                .map_err(|e| e.at_op(|| self.program.describe_op(BlockId::ROOT, index, fwd)))?;
            for op in &mut self.emitted[own..] {
                op.site = fwd.site;
                op.origin = Origin::Gradient { of: index };
            }
        }
        Ok(())
    }

    fn cut(&self, var: Var) -> bool {
        self.no_grad.get(var.index()).copied().unwrap_or(false)
    }

    /// Has the rule emit its operators: what is known of the operator, and what it leaves unchanged.
    fn ask(&mut self, fwd: &OpDesc) -> Result<(&'static OpInfo, Vec<Var>)> {
        let info = self.ops.get(&fwd.ty)?;
        let current: SmallVec<[(Var, Var); 4]> = fwd.writes().map(|v| (v, self.names.of_output(v))).collect();
        for var in fwd.writes() {
            if self.writers.is_redefinition(fwd, var) && !keeps_name(info, fwd, var) {
                self.names.start_older(self.program, var);
            }
        }
        let is_float = |var: Var| self.program.root().vars.get(&var).is_none_or(|desc| desc.dtype.is_float());
        let wanted: SmallVec<[Var; 4]> = fwd.reads().filter(|v| !self.cut(*v) && is_float(*v)).collect();
        let names = &*self.names;
        let of_output = |var: Var| {
            let own = current.iter().find(|(v, _)| *v == var);
            own.map_or_else(|| names.of_output(var), |(_, grad)| *grad)
        };
        let of_input = |var: Var| names.of_input(var);
        let is_wanted = |var: Var| wanted.contains(&var);
        let no_grad = self.no_grad;
        let arrives = |var: Var| !no_grad.get(var.index()).copied().unwrap_or(false);
        let mut g = GradCx::new(fwd, self.program, &of_output, &of_input, &is_wanted, &arrives, self.emitted);
        info.emit_grad(&mut g)?;
        Ok((info, g.into_unchanged()))
    }

    /// Looks at what a rule has emitted.
    fn judge(&self, index: usize, info: &OpInfo, own: usize, unchanged: &[Var]) -> Result<()> {
        let (fwd, own) = (&self.forward[index], &self.emitted[own..]);
        for op in own {
            // What is wired by name is as its operator declares it.
            let made = if matches!(info.grad_kind(), GradKind::Operator(_)) {
                self.ops.get(&op.ty)?
            } else {
                check(self.ops, fwd, op)?
            };
            self.writers.check(self.program, self.forward, index, made, op, unchanged)?;
        }
        reads_no_sum(self.program, self.names, fwd, own)
    }
}

/// Whether an operator that overwrites its own input may give the input's gradient the output's name: only a single
/// gradient operator that writes it once surely reads the one before it writes the other.
fn keeps_name(info: &OpInfo, fwd: &OpDesc, var: Var) -> bool {
    fwd.reads().filter(|v| *v == var).count() == 1 && matches!(info.grad_kind(), GradKind::Operator(_))
}

fn check(ops: &OpInfoMap, fwd: &OpDesc, op: &OpDesc) -> Result<&'static OpInfo> {
    let place = |e: Error| {
        Error::new(e.kind(), format!("the gradient rule of `{}` emits `{}`: {}", fwd.ty, op.ty, e.message()))
    };
    let info = ops.get(&op.ty).map_err(place)?;
    // An operator with nothing to write is dropped later; its slots may be empty.
    if op.writes().next().is_some() {
        info.check(op).map_err(place)?;
    }
    Ok(info)
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
#[derive(Default)]
struct Writers {
    /// By variable: one more than the index of the last, 0 when there is none.
    last: Vec<u32>,
    count: Vec<u32>,
}

impl Writers {
    fn of(forward: &[OpDesc], names: usize) -> Writers {
        let mut writers = Writers { last: vec![0; names], count: vec![0; names] };
        for (i, op) in forward.iter().enumerate() {
            for var in op.writes() {
                writers.last[var.index()] = i as u32 + 1;
                writers.count[var.index()] += 1;
            }
        }
        writers
    }

    fn last(&self, var: Var) -> Option<usize> {
        (*self.last.get(var.index())? as usize).checked_sub(1)
    }

    /// Whether there is an older definition of what `fwd` writes.
    fn is_redefinition(&self, fwd: &OpDesc, var: Var) -> bool {
        self.count.get(var.index()).is_some_and(|n| *n > 1) || fwd.reads().any(|v| v == var)
    }

    /// Refuses a gradient operator that would read a forward value after it has been overwritten.
    fn check(
        &self,
        program: &Program,
        forward: &[OpDesc],
        index: usize,
        made: &OpInfo,
        op: &OpDesc,
        unchanged: &[Var],
    ) -> Result<()> {
        let fwd = &forward[index];
        for (slot, args) in op.inputs.iter() {
            for var in args.iter().copied() {
                if self.last(var).is_none_or(|last| last < index) {
                    continue;
                }
                // As an input, the value before this operator; as an output, the one that it wrote.
                let as_input = fwd.inputs.get(&slot).contains(&var);
                let mentioned = || fwd.reads().chain(fwd.writes()).any(|v| v == var);
                let overwritten = self.last(var) != Some(index) || (as_input && !unchanged.contains(&var));
                let reads = || made.schema().input(&slot).is_none_or(|s| !s.shape_only);
                if overwritten && mentioned() && reads() {
                    let upto = if as_input { index } else { index + 1 };
                    return Err(refuse(program, forward, upto, var));
                }
            }
        }
        Ok(())
    }
}

fn refuse(program: &Program, forward: &[OpDesc], upto: usize, var: Var) -> Error {
    let name = program.name(var);
    let writers = forward.iter().enumerate().filter(|(_, op)| op.writes().any(|v| v == var));
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
