//! Several contributions to one gradient: each gets a name of its own, and a `sum` stands before the first reader.

use super::names::GradNames;
use crate::{OpDesc, Origin, Program, Slots, Var};

/// What is known of one gradient while walking.
#[derive(Default)]
struct Contributions {
    /// Names of the contributions so far; the gradient itself while there is one.
    parts: Vec<Var>,
    /// Operators in the output that mention the gradient since it was first written.
    mentions: Vec<usize>,
}

/// Renames repeated gradients to `w@GRAD@RENAME@0`, `@1`, … in the order in which they are written, and sums them before
/// the first operator that reads the gradient, or at the end.
pub(super) fn accumulate(program: &mut Program, names: &mut GradNames, emitted: Vec<OpDesc>) -> Vec<OpDesc> {
    let mut walk =
        Walk { names, out: Vec::with_capacity(emitted.len()), of: vec![], first_mentioned: vec![] };
    for op in emitted {
        walk.op(program, op);
    }
    for grad in std::mem::take(&mut walk.first_mentioned) {
        walk.collapse(grad);
    }
    walk.out
}

struct Walk<'a> {
    names: &'a mut GradNames,
    out: Vec<OpDesc>,
    of: Vec<Contributions>,
    first_mentioned: Vec<Var>,
}

impl Walk<'_> {
    fn contributions(&mut self, grad: Var) -> &mut Contributions {
        if self.of.len() <= grad.index() {
            self.of.resize_with(grad.index() + 1, Contributions::default);
        }
        &mut self.of[grad.index()]
    }

    fn is_grad(&self, var: Var) -> bool {
        self.names.base(var).is_some()
    }

    /// A new name for a contribution to `grad`.
    fn part(&mut self, program: &mut Program, grad: Var) -> Var {
        let prefix = format!("{}@RENAME@", program.name(grad));
        let part = program.fresh_after(&prefix);
        if let Some(base) = self.names.base(grad) {
            self.names.note(part, base);
        }
        part
    }

    fn mention(&mut self, grad: Var) {
        let at = self.out.len();
        let seen = self.contributions(grad);
        let new = seen.parts.is_empty() && seen.mentions.is_empty();
        if seen.mentions.last() != Some(&at) {
            seen.mentions.push(at);
        }
        if new {
            self.first_mentioned.push(grad);
        }
    }

    /// A `sum` of the contributions so far, if there are several.
    fn collapse(&mut self, grad: Var) {
        if self.contributions(grad).parts.len() < 2 {
            return;
        }
        let parts = std::mem::replace(&mut self.contributions(grad).parts, vec![grad]);
        let at = self.out.len();
        self.contributions(grad).mentions = vec![at];
        let sum = OpDesc::new("sum").input("X", parts).output("Out", [grad]);
        let site = self.out.last().and_then(|op| op.site);
        self.out.push(OpDesc { site, origin: Origin::Accumulate, ..sum });
    }

    fn op(&mut self, program: &mut Program, mut op: OpDesc) {
        let reads: Vec<Var> = op.reads().filter(|v| self.is_grad(*v)).collect();
        for grad in &reads {
            self.collapse(*grad);
        }
        reads.iter().for_each(|g| self.mention(*g));
        let writes: Vec<Var> = op.outputs.args().collect();
        for (position, grad) in writes.into_iter().enumerate() {
            if grad == Var::EMPTY || !self.is_grad(grad) || reads.contains(&grad) {
                continue;
            }
            let parts = self.contributions(grad).parts.len();
            if parts == 0 {
                self.mention(grad);
                self.contributions(grad).parts.push(grad);
                continue;
            }
            if parts == 1 {
                let first = self.part(program, grad);
                for at in std::mem::take(&mut self.contributions(grad).mentions) {
                    if let Some(earlier) = self.out.get_mut(at) {
                        replace(&mut earlier.inputs, grad, first, usize::MAX);
                        replace(&mut earlier.outputs, grad, first, usize::MAX);
                    }
                }
                // This operator may have written it before, in an earlier position.
                replace(&mut op.outputs, grad, first, position);
                self.contributions(grad).parts = vec![first];
            }
            let part = self.part(program, grad);
            if let Some(arg) = op.outputs.args_mut().nth(position) {
                *arg = part;
            }
            self.contributions(grad).parts.push(part);
        }
        self.out.push(op);
    }
}

/// Replaces a variable in the first `before` positions.
fn replace(slots: &mut Slots, from: Var, to: Var, before: usize) {
    slots.args_mut().take(before).filter(|v| **v == from).for_each(|v| *v = to);
}
