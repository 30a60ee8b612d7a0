//! Inputs and outputs of an operator of the backward pass, in terms of its forward operator.

use autobwd_core::{BlockId, OpDesc, Origin, Program, Var, VarKind};
use smallvec::SmallVec;

/// Maximum number of listed items of one kind.
pub(crate) const LISTED: usize = 4;

/// The forward output whose gradient an operator of the backward pass reads from that variable.
pub(crate) fn given_for(program: &Program, block: BlockId, op: &OpDesc, grad: Var) -> Option<Var> {
    let Origin::Gradient { of } = op.origin else { return None };
    let fwd = forward_ops(program, block).get(of)?;
    let (slot, args) = op.inputs.iter().find(|(_, args)| args.contains(&grad))?;
    let wired = slot.strip_suffix("@GRAD").map_or(&[][..], |output| fwd.outputs.get(output));
    let own = args.iter().position(|v| *v == grad).and_then(|i| wired.get(i)).copied();
    own.or_else(|| fwd.writes().next())
}

/// The inputs of an operator of the backward pass other than values of its forward operator: gradients, copies of
/// overwritten values, and recomputed values, but not saved step state.
pub(crate) fn incoming(program: &Program, block: BlockId, op: &OpDesc) -> SmallVec<[Var; 4]> {
    let scopes = |v: Var| program.lookup(block, v).is_some_and(|desc| desc.kind == VarKind::StepScopes);
    match op.origin {
        Origin::Model | Origin::Kept | Origin::Seed | Origin::ZeroFill => SmallVec::new(),
        Origin::Accumulate | Origin::AllReduce => op.reads().collect(),
        Origin::Recompute { of } => {
            let first = forward_ops(program, block).get(of);
            op.reads().filter(|v| first.is_some_and(|first| !first.reads().any(|own| own == *v))).collect()
        }
        Origin::Gradient { of } => {
            let Some(fwd) = forward_ops(program, block).get(of) else { return op.reads().collect() };
            let mut found = SmallVec::new();
            for (slot, args) in op.inputs.iter() {
                let output = slot.strip_suffix("@GRAD").is_some_and(|s| !fwd.outputs.get(s).is_empty());
                let gradient =
                    output && fwd.inputs.get(&slot).is_empty() && fwd.outputs.get(&slot).is_empty();
                let of_forward = |v: Var| !gradient && fwd.reads().chain(fwd.writes()).any(|own| own == v);
                found.extend(
                    args.iter().copied().filter(|v| *v != Var::EMPTY && !of_forward(*v) && !scopes(*v)),
                );
            }
            found
        }
    }
}

/// `a, b and c`, or `a, b, c, d and 3 more`.
pub(crate) fn listed<T: ToString>(items: impl IntoIterator<Item = T>, total: usize) -> String {
    let mut named: Vec<String> = items.into_iter().take(LISTED).map(|item| item.to_string()).collect();
    if total > named.len() {
        named.push(format!("{} more", total - named.len()));
    }
    match named.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        _ => named.concat(),
    }
}

/// The forward operators of a block's backward pass.
pub(crate) fn forward_ops(program: &Program, block: BlockId) -> &[OpDesc] {
    let forward = program.block(block).and_then(|own| own.forward).unwrap_or(block);
    program.block(forward).map_or(&[], |block| &block.ops)
}
