//! The state of optimizers among the values that a program keeps: learning rates, moments, powers of decays.

use std::collections::HashSet;

use autobwd_core::{OpDesc, Program, Var};

/// The slots of update operators, in all optimizers: the parameter, its gradient and the learning rate.
const PARAMETER: &str = "Param";
const GRADIENT: &str = "Grad";
pub(crate) const RATE_SLOT: &str = "LearningRate";

/// The name of the learning rate of an optimizer without a name: a variable of the program, of shape `[1]`.
pub const LEARNING_RATE: &str = "learning_rate_0";

/// The name of the counter of steps from which a program computes a scheduled learning rate, for an optimizer without a
/// name.
pub const SCHEDULE_STEP: &str = "schedule_step_0";

/// The variables that the optimizers of a program keep: what update operators read besides parameters and gradients, and
/// what learning rates are computed of.
pub(crate) fn optimizer_state(program: &Program) -> HashSet<Var> {
    let root = program.root();
    let is_update =
        |op: &&OpDesc| !op.inputs.get(PARAMETER).is_empty() && !op.inputs.get(RATE_SLOT).is_empty();
    let states = |op: &'_ OpDesc| -> Vec<Var> {
        let slots = op.inputs.iter().filter(|(slot, _)| ![PARAMETER, GRADIENT].contains(&&**slot));
        slots.flat_map(|(_, vars)| vars.iter().copied()).collect()
    };
    let updates = || root.ops.iter().filter(is_update);
    let rates: HashSet<Var> = updates().flat_map(|op| op.inputs.get(RATE_SLOT)).copied().collect();
    let mut queue: Vec<Var> = updates().flat_map(states).collect();
    let mut seen: HashSet<Var> = queue.iter().copied().collect();
    while let Some(var) = queue.pop() {
        // A program may compute a learning rate that it keeps, from the counter of a schedule.
        let is_kept = root.vars.get(&var).is_some_and(|desc| desc.persistable) && !rates.contains(&var);
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

/// Whether a value of a file is the state of an optimizer by its name: a parameter of the file, a dot and more, such as
/// `w.moment1`, or a learning rate. Those of an optimizer with a name have it in front, as `critic.w.moment1` next to
/// `critic.learning_rate_0`.
pub(crate) fn is_named_as_state(name: &str, is_in_file: impl Fn(&str) -> bool) -> bool {
    let has_rate = |prefix: &str| is_in_file(&format!("{prefix}{LEARNING_RATE}"));
    let dots = || name.match_indices('.').map(|(at, _)| at);
    let starts = std::iter::once(0).chain(dots().map(|at| at + 1));
    let mut own = starts.filter(|start| *start == 0 || has_rate(&name[..*start]));
    own.any(|start| {
        let rest = &name[start..];
        rest == LEARNING_RATE
            || rest == SCHEDULE_STEP
            || dots().filter(|end| *end > start).any(|end| is_in_file(&name[start..end]))
    })
}
