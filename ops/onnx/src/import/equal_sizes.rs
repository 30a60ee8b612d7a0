//! Equal computations of integers are made once: rules compute sizes where they need them, often the same ones.

use std::collections::{HashMap, HashSet};

use autobwd::{OpDesc, Program, program::Var};
use autobwd_core::OpKey;

/// Leaves the first of equal operators of the main block whose outputs hold no floating point numbers. An operator stays if
/// `is_named` says that an output has a name of the file, and if other blocks know an output by its name.
pub(super) fn merge(program: &mut Program, is_named: impl Fn(Var) -> bool) {
    let (mut writes, mut known): (HashMap<Var, usize>, HashSet<Var>) = Default::default();
    for (index, block) in program.blocks().iter().enumerate() {
        for op in &block.ops {
            op.writes().for_each(|var| *writes.entry(var).or_default() += 1);
            if index > 0 || runs_block(op) {
                known.extend(op.reads().chain(op.writes()));
            }
        }
    }
    let root = program.root_mut();
    // A value that several operators write, or that outlives a run, may differ from one operator to the next.
    let is_fixed = |var: Var| match writes.get(&var) {
        None => true,
        Some(1) => root.vars.get(&var).is_some_and(|desc| !desc.persistable),
        Some(_) => false,
    };
    let is_integer = |var: Var| root.vars.get(&var).is_some_and(|desc| !desc.dtype.is_float());
    let (mut first, mut merged) = (HashMap::new(), HashMap::new());
    for op in &root.ops {
        // Random operators with equal seeds are two draws where the generator counts its runs.
        let is_repeatable = !runs_block(op) && op.attrs.get("seed").is_none();
        if !is_repeatable
            || !op.outputs.args().all(is_integer)
            || !op.reads().chain(op.writes()).all(is_fixed)
        {
            continue;
        }
        let outputs = first.entry(computation(op, &merged)).or_insert_with(|| op.outputs.clone());
        if !op.writes().any(|var| is_named(var) || known.contains(&var)) {
            merged.extend(op.writes().zip(outputs.args()).filter(|(later, earlier)| later != earlier));
        }
    }
    root.ops.retain(|op| !op.writes().any(|var| merged.contains_key(&var)));
    for var in root.ops.iter_mut().flat_map(|op| op.inputs.args_mut()) {
        *var = merged.get(var).copied().unwrap_or(*var);
    }
    let declared = std::mem::take(&mut root.vars);
    root.vars.extend(declared.into_iter().filter(|(var, _)| !merged.contains_key(var)));
}

fn runs_block(op: &OpDesc) -> bool {
    op.attrs.blocks().next().is_some()
}

/// What an operator computes, whatever its outputs are called.
fn computation(op: &OpDesc, merged: &HashMap<Var, Var>) -> OpKey {
    let mut op = op.clone();
    op.inputs.args_mut().for_each(|var| *var = merged.get(var).copied().unwrap_or(*var));
    op.outputs.args_mut().for_each(|var| *var = Var::EMPTY);
    OpKey::of(&op)
}
