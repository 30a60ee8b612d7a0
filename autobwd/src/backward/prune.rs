//! Gradients that nobody produces.

use std::collections::HashSet;

use super::names::GradNames;
use crate::{OpDesc, Origin, Var};

/// Drops operators that write nothing or to which no gradient flows; before the others, gradients that nobody has
/// produced are filled with zeros, and leave the operands of sums.
pub(super) fn prune(names: &GradNames, emitted: Vec<OpDesc>) -> Vec<OpDesc> {
    let mut produced: HashSet<Var> = HashSet::new();
    let mut kept = Vec::with_capacity(emitted.len());
    for mut op in emitted {
        if op.writes().next().is_none() {
            continue;
        }
        let grads: Vec<Var> = op.reads().filter(|v| names.base(*v).is_some()).collect();
        let missing = |v: &Var| names.base(*v).is_some() && !produced.contains(v);
        if !grads.is_empty() && grads.iter().all(missing) {
            continue;
        }
        if op.origin == Origin::Accumulate {
            let there: Vec<Var> = op.inputs.get("X").iter().copied().filter(|v| !missing(v)).collect();
            op.inputs.set("X", there);
        }
        for grad in op.reads().filter(missing) {
            let Some(base) = names.base(grad) else { continue };
            let fill = OpDesc::new("fill_zeros_like").input("X", [base]).output("Out", [grad]);
            kept.push(OpDesc { site: op.site, origin: Origin::ZeroFill, ..fill });
        }
        produced.extend(op.writes());
        kept.push(op);
    }
    kept
}
