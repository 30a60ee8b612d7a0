//! The state of optimizers among the values that a program keeps: learning rates, moments, powers of decays.

use rustc_hash::{FxHashMap, FxHashSet};

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

/// What names of state end with, in all optimizers of the library: `w.moment1`.
const STATES: [&str; 8] =
    ["moment1", "moment2", "beta1_pow", "beta2_pow", "moment", "mean_square", "mean_grad", "velocity"];

/// The variables that the optimizers of a program keep: what update operators read besides parameters and gradients, and
/// what learning rates are computed of, up to values of the model: a rate may follow from the loss, whose running
/// statistics are no state of the optimizer.
pub(crate) fn optimizer_state(program: &Program) -> FxHashSet<Var> {
    let root = program.root();
    let is_update =
        |op: &&OpDesc| !op.inputs.get(PARAMETER).is_empty() && !op.inputs.get(RATE_SLOT).is_empty();
    let states = |op: &'_ OpDesc| -> Vec<Var> {
        let slots = op.inputs.iter().filter(|(slot, _)| ![PARAMETER, GRADIENT].contains(&&**slot));
        slots.flat_map(|(_, vars)| vars.iter().copied()).collect()
    };
    let updates = || root.ops.iter().filter(is_update);
    let mut writers: FxHashMap<Var, Vec<&OpDesc>> = FxHashMap::default();
    for op in &root.ops {
        op.writes().for_each(|var| writers.entry(var).or_default().push(op));
    }
    let of_model = values_of_model(program);
    let mut queue: Vec<Var> = updates().flat_map(states).collect();
    let mut seen: FxHashSet<Var> = queue.iter().copied().collect();
    while let Some(var) = queue.pop() {
        let read = writers.get(&var).into_iter().flatten().flat_map(|op| op.reads());
        let new = read.filter(|read| !of_model.contains(read) && seen.insert(*read));
        queue.extend(new.collect::<Vec<_>>());
    }
    seen.retain(|var| root.vars.get(var).is_some_and(|desc| desc.persistable && !desc.parameter));
    seen
}

/// Parameters, gradients and data, and what is computed of them.
fn values_of_model(program: &Program) -> FxHashSet<Var> {
    let root = program.root();
    let (mut found, mut written) = (FxHashSet::default(), FxHashSet::default());
    for op in &root.ops {
        let starts = |var: &Var| match root.vars.get(var) {
            Some(desc) if desc.persistable => desc.parameter,
            Some(desc) => desc.gradient_of.is_some() || !written.contains(var),
            None => false,
        };
        let is_of_model = op.reads().any(|var| found.contains(&var) || starts(&var));
        found.extend(op.reads().filter(starts).collect::<Vec<_>>());
        for var in op.writes() {
            written.insert(var);
            found.extend(is_of_model.then_some(var));
        }
    }
    found
}

/// Whether a value of a file is the state of an optimizer by its name: a learning rate, or a parameter of the file, a
/// dot and a name of state, as `w.moment1`. State of an optimizer with a name has this name in front, as
/// `critic.w.moment1` next to `critic.learning_rate_0`.
pub(crate) fn is_named_as_state(name: &str, is_in_file: impl Fn(&str) -> bool) -> bool {
    let has_rate = |prefix: &str| is_in_file(&format!("{prefix}{LEARNING_RATE}"));
    let starts = std::iter::once(0).chain(name.match_indices('.').map(|(at, _)| at + 1));
    let mut own = starts.filter(|start| *start == 0 || has_rate(&name[..*start]));
    own.any(|start| {
        let rest = &name[start..];
        let is_of = |(owner, what): (&str, &str)| STATES.contains(&what) && is_in_file(owner);
        rest == LEARNING_RATE || rest == SCHEDULE_STEP || rest.rsplit_once('.').is_some_and(is_of)
    })
}
