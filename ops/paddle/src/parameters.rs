//! Which variables of a program are parameters.

use std::collections::HashSet;

use autobwd::{OpDesc, Program, program::Var};

use crate::info::ParameterInfos;

/// Slots of values that an operator keeps up to date itself.
const STATISTICS: [&str; 2] = ["Mean", "Variance"];

/// Marks the parameters of a program that marks none: the floating point tensors that operators read
/// as weights. Those that `infos` calls not trainable are frozen.
pub(crate) fn mark_parameters(program: &mut Program, infos: &ParameterInfos) {
    let found: Vec<Var> = match program.parameters().next() {
        Some(_) => program.parameters().collect(),
        None => weights(program),
    };
    let trainable = |name: &str| infos.get(name).and_then(|info| info.trainable);
    for var in found {
        let name = program.name(var).to_string();
        if let Some(desc) = program.root_mut().vars.get_mut(&var) {
            desc.parameter = true;
            desc.stop_gradient |= trainable(&name) == Some(false);
        }
    }
}

/// Kept floating point tensors that operators read as weights.
fn weights(program: &Program) -> Vec<Var> {
    let ops = || program.blocks().iter().flat_map(|block| &block.ops);
    let written: HashSet<Var> = ops().flat_map(OpDesc::writes).collect();
    let statistics =
        |op: &OpDesc| STATISTICS.iter().flat_map(|slot| op.inputs.get(slot).to_vec()).collect::<Vec<_>>();
    let statistics: HashSet<Var> = ops().flat_map(statistics).collect();
    let read: HashSet<Var> = ops().flat_map(OpDesc::reads).collect();
    let is_weight = |var: &Var| read.contains(var) && !written.contains(var) && !statistics.contains(var);
    let kept = program.root().vars.iter().filter(|(_, desc)| desc.persistable && desc.dtype.is_float());
    kept.map(|(var, _)| *var).filter(is_weight).collect()
}
