//! Pruning of gradient operators without incoming gradient, and zero filling of missing gradients.

use rustc_hash::FxHashSet;

use crate::{accumulate::between, grad_names::GradNames};
use autobwd_core::{OpDesc, Origin, Var, operators::zeros};

/// Drops operators that write nothing or that no gradient flows into. For the others, it fills gradients without writer
/// with zeros, or removes them from the operands of sums. `given` are variables used as gradients of targets; a target
/// in `no_grad` has none.
pub fn prune(
    name_count: usize,
    names: &GradNames,
    given: &FxHashSet<Var>,
    no_grad: &[bool],
    mut emitted: Vec<OpDesc>,
) -> Vec<OpDesc> {
    let mut produced = ProducedGradients {
        names,
        given,
        no_grad,
        there: vec![false; name_count],
        stopped: FxHashSet::default(),
    };
    let (mut fills, mut kept) = (vec![], 0);
    emitted.retain_mut(|op| {
        if op.writes().next().is_none() {
            return false;
        }
        // A value that is no gradient is kept, because another operator of the same rule reads it.
        let for_itself = op.writes().any(|v| names.base(v).is_none());
        if !for_itself && !produced.flows_into(op) {
            produced.record_dropped(op);
            return false;
        }
        if op.origin == Origin::Accumulate {
            op.inputs.retain(|v| !produced.is_missing(v) || produced.stopped.contains(&v));
        }
        // An operator with a sub-block takes a gradient without writer as zero.
        let filled = op.attrs.blocks().next().is_none();
        for grad in op.reads().filter(|v| produced.is_missing(*v) && (filled || produced.cut(*v))) {
            let Some(value) = names.value(grad) else { continue };
            fills.push((kept, OpDesc { site: op.site, ..zeros(value, grad) }));
        }
        produced.note(op);
        kept += 1;
        true
    });
    between(emitted, fills)
}

/// Gradients written so far, and the auxiliary values that rules computed from them.
struct ProducedGradients<'a> {
    names: &'a GradNames,
    given: &'a FxHashSet<Var>,
    no_grad: &'a [bool],
    /// By variable.
    there: Vec<bool>,
    /// Zeros: values derived only from gradients of variables without gradient.
    stopped: FxHashSet<Var>,
}

impl ProducedGradients<'_> {
    fn is_grad(&self, var: Var) -> bool {
        self.names.base(var).is_some() || self.given.contains(&var)
    }

    fn has(&self, var: Var) -> bool {
        // Stand-ins for overwritten values are in no table.
        self.there.get(var.index()).is_some_and(|there| *there) || self.given.contains(&var)
    }

    fn is_missing(&self, var: Var) -> bool {
        self.is_grad(var) && !self.has(var)
    }

    /// Whether it reads no gradients at all, or a gradient that exists, or a value derived from one.
    fn flows_into(&self, op: &OpDesc) -> bool {
        !op.reads().any(|v| self.is_grad(v)) || op.reads().any(|v| self.has(v))
    }

    fn record_dropped(&mut self, op: &OpDesc) {
        let mut grads = op.reads().filter(|v| self.is_grad(*v));
        if grads.all(|v| self.cut(v) || self.stopped.contains(&v)) {
            self.stopped.extend(op.writes());
        }
    }

    /// Whether it is the gradient of a variable without gradient.
    fn cut(&self, var: Var) -> bool {
        self.names.base(var).is_some_and(|b| self.no_grad.get(b.index()).copied().unwrap_or(false))
    }

    fn note(&mut self, op: &OpDesc) {
        let fed = op.reads().any(|v| self.has(v));
        for var in op.writes() {
            self.there[var.index()] |= if self.names.base(var).is_some() { !self.cut(var) } else { fed };
        }
    }
}
