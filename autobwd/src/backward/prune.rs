//! Gradients that nobody produces.

use rustc_hash::FxHashSet;

use super::{accumulate::between, names::GradNames};
use crate::{OpDesc, Origin, Var};

/// Drops operators that write nothing or to which no gradient flows; before the others, gradients that nobody has
/// produced are filled with zeros, and leave the operands of sums. `given` are variables that stand for gradients of
/// targets; a target in `no_grad` has none.
pub(super) fn prune(
    name_count: usize,
    names: &GradNames,
    given: &[Var],
    no_grad: &[bool],
    mut emitted: Vec<OpDesc>,
) -> Vec<OpDesc> {
    let dead = dead_rules(name_count, names, given, no_grad, &emitted);
    let mut produced = Produced::new(name_count, names, given, no_grad);
    let (mut fills, mut kept) = (vec![], 0);
    emitted.retain_mut(|op| {
        if op.writes().next().is_none() || rule(op).is_some_and(|of| dead.contains(&of)) {
            return false;
        }
        // What a rule writes for itself is kept: another of its operators reads it.
        let for_itself = op.writes().any(|v| names.base(v).is_none());
        if !for_itself && !produced.flows_into(op) {
            return false;
        }
        if op.origin == Origin::Accumulate {
            let there: Vec<Var> =
                op.inputs.get("X").iter().copied().filter(|v| !produced.lacks(*v)).collect();
            op.inputs.set("X", there);
        }
        for grad in op.reads().filter(|v| produced.lacks(*v)) {
            let Some(base) = names.base(grad) else { continue };
            let fill = OpDesc::new("fill_zeros_like").input("X", [base]).output("Out", [grad]);
            fills.push((kept, OpDesc { site: op.site, origin: Origin::ZeroFill, ..fill }));
        }
        produced.note(op);
        kept += 1;
        true
    });
    between(emitted, fills)
}

/// Forward operators, by index, to whose rules no gradient flows at all.
fn dead_rules(
    name_count: usize,
    names: &GradNames,
    given: &[Var],
    no_grad: &[bool],
    emitted: &[OpDesc],
) -> FxHashSet<usize> {
    let mut produced = Produced::new(name_count, names, given, no_grad);
    let mut dead = FxHashSet::default();
    // A rule's operators follow each other; a sum stands before the one that reads it.
    let mut owner = None;
    let mut owned: Vec<(Option<usize>, &OpDesc)> = Vec::with_capacity(emitted.len());
    for op in emitted.iter().rev() {
        if op.origin != Origin::Accumulate {
            owner = rule(op);
        }
        owned.push((owner, op));
    }
    owned.reverse();
    for run in owned.chunk_by(|(a, _), (b, _)| a == b) {
        let sums = || run.iter().map(|(_, op)| *op).filter(|op| op.origin == Origin::Accumulate);
        let own = || run.iter().map(|(_, op)| *op).filter(|op| op.origin != Origin::Accumulate);
        sums().for_each(|op| produced.note_if_fed(op));
        let reads_gradients = own().any(|op| op.reads().any(|v| produced.is_grad(v)));
        match run[0].0 {
            Some(of) if reads_gradients && !own().any(|op| op.reads().any(|v| produced.has(v))) => {
                dead.insert(of);
            }
            _ => own().for_each(|op| produced.note(op)),
        }
        sums().for_each(|op| produced.note_if_fed(op));
    }
    dead
}

/// The forward operator whose rule has emitted an operator.
fn rule(op: &OpDesc) -> Option<usize> {
    match op.origin {
        Origin::Gradient { of } => Some(of),
        _ => None,
    }
}

/// Gradients that the operators so far have produced, and what rules have made of these for themselves.
struct Produced<'a> {
    names: &'a GradNames,
    given: &'a [Var],
    no_grad: &'a [bool],
    /// By variable.
    there: Vec<bool>,
}

impl<'a> Produced<'a> {
    fn new(name_count: usize, names: &'a GradNames, given: &'a [Var], no_grad: &'a [bool]) -> Produced<'a> {
        Produced { names, given, no_grad, there: vec![false; name_count] }
    }

    fn is_grad(&self, var: Var) -> bool {
        self.names.base(var).is_some() || self.given.contains(&var)
    }

    fn has(&self, var: Var) -> bool {
        self.there[var.index()] || self.given.contains(&var)
    }

    fn lacks(&self, var: Var) -> bool {
        self.is_grad(var) && !self.has(var)
    }

    /// Whether it reads no gradients at all, or one that is there, or what was made of one.
    fn flows_into(&self, op: &OpDesc) -> bool {
        !op.reads().any(|v| self.is_grad(v)) || op.reads().any(|v| self.has(v))
    }

    fn note_if_fed(&mut self, op: &OpDesc) {
        if self.flows_into(op) {
            self.note(op);
        }
    }

    fn note(&mut self, op: &OpDesc) {
        let names = self.names;
        let cut =
            |v: Var| names.base(v).is_some_and(|b| self.no_grad.get(b.index()).copied().unwrap_or(false));
        let fed = op.reads().any(|v| self.has(v));
        let made = op.writes().filter(|v| if names.base(*v).is_some() { !cut(*v) } else { fed });
        made.for_each(|v| self.there[v.index()] = true);
    }
}
