//! Forward operators of gradient operators, and checks of the operators that gradient rules emit.

use rustc_hash::FxHashSet;

use crate::{Arity, Error, ErrorKind, OpDesc, OpInfoMap, Program, Result, Schema, Var, desc::GRAD};

/// The forward operator of a gradient operator, as far as it can be reconstructed: of its outputs, only their number.
pub(crate) fn forward_op(forward: &Schema, gradient: &OpDesc) -> OpDesc {
    let mut op = OpDesc { attrs: gradient.attrs.clone(), ..OpDesc::new(forward.name) };
    for slot in forward.inputs {
        op.inputs.set(slot.name, gradient.inputs.get(slot.name).iter().copied());
    }
    for slot in forward.outputs {
        let own = gradient.inputs.get(slot.name).to_vec();
        let grads = gradient.inputs.get(&[slot.name, GRAD].concat()).to_vec();
        let any = gradient.reads().take(usize::from(slot.arity == Arity::One)).collect();
        let there = [grads, own, any].into_iter().find(|args| !args.is_empty());
        op.outputs.set(slot.name, there.unwrap_or_default());
    }
    op
}

/// Checks the operators that the gradient rule of an operator emits.
///
/// # Errors
/// Unknown operators; invalid slots; a write to a variable of the model (which `of_model` returns); a read of a
/// gradient that the rule has written, since it would yield the sum of all contributions.
pub fn check_emitted(
    ops: &OpInfoMap,
    names: &Program,
    fwd: &OpDesc,
    own: &[OpDesc],
    is_gradient: &dyn Fn(Var) -> bool,
    of_model: &dyn Fn(Var) -> Option<Var>,
) -> Result<()> {
    for op in own {
        let place = |e: Error| {
            let text = format!("the gradient rule of `{}` emits `{}`: {}", fwd.ty, op.ty, e.message());
            Error::new(e.kind(), text)
        };
        let info = ops.get(&op.ty).map_err(place)?;
        if let Some(var) = op.writes().filter(|v| !is_gradient(*v)).find_map(of_model) {
            let text =
                format!("a gradient rule may not write `{}`, a variable of the model", names.name(var));
            return Err(place(Error::new(ErrorKind::NoGradient, text)));
        }
        // An operator without outputs is dropped later; its slots may be empty.
        if op.writes().next().is_some() {
            info.check(op).map_err(place)?;
        }
    }
    let mut written: FxHashSet<Var> = FxHashSet::default();
    for (i, op) in own.iter().enumerate() {
        if let Some(grad) = op.reads().find(|v| written.contains(v) && is_gradient(*v)) {
            let text = format!(
                "the gradient rule of `{}` reads `{}` after writing it, although other rules may contribute to it; \
                 use a fresh variable",
                fwd.ty,
                names.name(grad)
            );
            return Err(Error::new(ErrorKind::NoGradient, text));
        }
        // No operator follows the last one, which is mostly the only one.
        if i + 1 < own.len() {
            written.extend(op.writes());
        }
    }
    Ok(())
}
