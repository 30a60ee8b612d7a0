//! The state of optimizers among the values that a program keeps: learning rates, moments, powers of decays.

use std::collections::HashSet;

use autobwd_core::{OpDesc, Program, Var};

/// The slots of update operators, in all optimizers: the parameter, its gradient and the learning rate.
const PARAMETER: &str = "Param";
const GRADIENT: &str = "Grad";
const LEARNING_RATE: &str = "LearningRate";

/// The variables that the optimizers of a program keep: what update operators read beside parameters and gradients, and
/// what learning rates are computed of.
pub(crate) fn optimizer_state(program: &Program) -> HashSet<Var> {
    let root = program.root();
    let is_update =
        |op: &&OpDesc| !op.inputs.get(PARAMETER).is_empty() && !op.inputs.get(LEARNING_RATE).is_empty();
    let states = |op: &'_ OpDesc| -> Vec<Var> {
        let slots = op.inputs.iter().filter(|(slot, _)| ![PARAMETER, GRADIENT].contains(&&**slot));
        slots.flat_map(|(_, vars)| vars.iter().copied()).collect()
    };
    let mut queue: Vec<Var> = root.ops.iter().filter(is_update).flat_map(states).collect();
    let mut seen: HashSet<Var> = queue.iter().copied().collect();
    while let Some(var) = queue.pop() {
        let is_kept = root.vars.get(&var).is_some_and(|desc| desc.persistable);
        let writers = root.ops.iter().filter(|op| !is_kept && op.writes().any(|written| written == var));
        for read in writers.flat_map(OpDesc::reads) {
            if seen.insert(read) {
                queue.push(read);
            }
        }
    }
    seen.retain(|var| root.vars.get(var).is_some_and(|desc| desc.persistable && !desc.parameter));
    seen
}

/// Whether a value of a file is the state of an optimizer by its name: that of a parameter, which is in the file, a dot
/// and more, such as `w.moment1`, or that of a learning rate.
pub(crate) fn is_named_as_state(name: &str, is_in_file: impl Fn(&str) -> bool) -> bool {
    let is_rate = name.strip_prefix("learning_rate_").is_some_and(|n| n.bytes().all(|b| b.is_ascii_digit()));
    is_rate || name.match_indices('.').any(|(at, _)| is_in_file(&name[..at]))
}
