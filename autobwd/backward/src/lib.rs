//! Automatic differentiation of programs by program transformation: gradient operators are appended to the operators of
//! a program.
//!
//! Must not run a kernel. Each pass is a function over plain data, in call order:
//!
//! 0. `lower_control_flow::lower`: for higher-order gradients, replaces branches, recurrences and counted loops
//!    (`trip_count`) by branches and recurrences that compute a step with its gradient.
//! 1. `stop_gradients::find`: finds the `stop_gradient` marks that do not count. `relevance::find`: finds the relevant
//!    operators, which the targets depend on through differentiable variables.
//! 2. `recompute::seed` and `recompute::segments`: split the program at named checkpoints.
//! 3. `gradient_ops::emit`: emits gradient operators in reverse order. From here on, stand-ins represent values that a
//!    later operator overwrites.
//! 4. `recompute::insert_recomputation`: inserts the recomputation of each segment before its gradients.
//! 5. `accumulate::accumulate`: renames and sums several contributions to one gradient.
//! 6. `prune::prune`: removes operators without incoming gradient, and fills missing gradients of the others with
//!    zeros.
//! 7. `preserve_overwritten::keep`: replaces stand-ins by copies of overwritten values.
//! 8. `declare::declare`: infers dtypes and shapes of the new variables.
//! 9. `recompute::insert_recomputation` again, for variables that are not kept; `budget` chooses them for a memory
//!    budget.
//!
//! The program is changed only after every pass has succeeded; debug builds then verify the result, and so do release
//! builds if the program had gradient operators before. `report` describes
//! the result for every requested variable, `explain` one gradient of a program, which may come from a file.
//! `higher_order` composes whole backward passes.

mod accumulate;
mod budget;
mod checkpoints;
mod declare;
mod explain;
mod finished;
mod flow;
mod grad_names;
mod gradient_block;
mod gradient_ops;
mod higher_order;
mod lower_control_flow;
mod path_ends;
mod preserve_overwritten;
mod prune;
mod recompute;
mod relevance;
mod report;
mod stop_gradients;
mod trip_count;

#[doc(hidden)]
pub use trip_count::trips;

/// The passes that trees of operators share with programs.
#[doc(hidden)]
pub mod __private {
    pub use crate::{accumulate::accumulate, grad_names::GradNames, prune::prune};
}

use std::panic::Location;

use rustc_hash::{FxHashMap, FxHashSet};

use autobwd_core::{
    __private::{Lookup, internals::*, span},
    BlockId, Error, ErrorKind, Meta, OpDesc, OpInfoMap, Origin, Program, Result, Site, Var, VarDesc, VarKind,
    operators::{Assign, FillAnyLike, FillConstant},
    verify::require_valid,
};
use budget::{BudgetedBackward, RecomputeSet};
pub use checkpoints::{Recompute, RecomputeChoice, RecomputeCost, RecomputeReport};
pub use explain::explain;
use finished::FinishedBackward;
use grad_names::GradNames;
pub use gradient_block::gradient_block;
use gradient_ops::{GradientEmitter, GradientTemplates, emit};
pub use higher_order::{hessian_vector_product, jacobian};
pub use path_ends::missing;
use preserve_overwritten::ValueVersions;
use recompute::CheckpointSegments;
use relevance::GradientRequest;
pub use report::{Gradients, MissingGradient, OpLocation, PathEnd, StopReason};

/// Options of [`append_backward`]: the variables to differentiate with respect to, and the ones without gradient.
#[derive(Clone, Copy, Debug, Default)]
pub struct Backward<'a> {
    /// The parameters (or other variables) whose gradients are requested; all parameters of the program when `None`.
    pub parameters: Option<&'a [&'a str]>,
    /// Variables without gradient, in addition to those marked `stop_gradient`.
    pub no_grad: &'a [&'a str],
    /// The forward values kept for the backward pass; the others are recomputed.
    pub recompute: Recompute<'a>,
    /// Whether gradients requested by name may be missing.
    pub allow_missing: bool,
    /// The operators; those linked into this binary when `None`.
    pub ops: Option<&'a OpInfoMap>,
}

/// Options of [`gradients`] and the functions built on it.
#[derive(Clone, Copy, Debug, Default)]
pub struct GradientOptions<'a> {
    /// By target: the variable with its upstream gradient (cotangent); ones when `None`.
    pub target_gradients: Option<&'a [Option<&'a str>]>,
    /// Variables without gradient, in addition to those marked `stop_gradient`.
    pub no_grad: &'a [&'a str],
    /// The operators; those linked into this binary when `None`.
    pub ops: Option<&'a OpInfoMap>,
}

/// The given operators, or those linked into this binary.
fn ops_or_linked(ops: Option<&OpInfoMap>) -> Result<&OpInfoMap> {
    match ops {
        Some(ops) => Ok(ops),
        None => OpInfoMap::linked(),
    }
}

/// Appends the operators that compute the gradient of `loss` with respect to the parameters.
///
/// The gradient of `w` is the variable `w@GRAD`. If `w` is written several times, it is the gradient with respect to
/// the initial value if an operator reads that value, else with respect to the last one. A value that a gradient needs
/// and a later operator overwrites is saved in a copy, `w@KEPT@0`, right before the write.
///
/// # Errors
/// A program that [`verify`](autobwd_core::verify()) rejects; a loss of more than one element; unknown names; an
/// operator on the path without gradient; a parameter requested by name that has no gradient (unless `allow_missing`);
/// an overwritten value that cannot be copied; a variable that cannot be recomputed; a budget that cannot be met. The
/// program is then unchanged.
#[track_caller]
pub fn append_backward(program: &mut Program, loss: &str, backward: &Backward<'_>) -> Result<Gradients> {
    span!("append_backward", loss = loss);
    let ops = ops_or_linked(backward.ops)?;
    let site = Site::Here(Location::caller());
    require_valid(ops, program)?;
    let differentiate = |program: &mut Program| differentiate_loss(ops, program, loss, backward, site);
    match backward.recompute {
        Recompute::None => atomically(program, differentiate),
        // These add seeds and copies to the model before anything can fail.
        _ => {
            let mut draft = program.clone();
            let found = differentiate(&mut draft)?;
            *program = draft;
            Ok(found)
        }
    }
}

/// What the training step of a loss may recompute, cheapest first, beginning with nothing: sets of forward values, for
/// [`Recompute::Without`]. The step fetches the loss, is fed data of these shapes, and updates each parameter as soon as
/// its gradient is complete. The choices do not depend on a budget: a larger budget has the choices of a smaller one.
///
/// # Errors
/// As [`append_backward`] and as for planning a run of these feeds; a shape that is known only at run time.
pub fn recompute_choices(
    program: &Program,
    loss: &str,
    backward: &Backward<'_>,
    feeds: &[(&str, Meta)],
) -> Result<Vec<RecomputeChoice>> {
    let ops = ops_or_linked(backward.ops)?;
    require_valid(ops, program)?;
    let (program, backward) = (&mut program.clone(), &Backward { recompute: Recompute::None, ..*backward });
    let loss = expect_loss(program, loss)?;
    let (mut done, asked) = finish_loss(ops, program, loss, backward, Site::Here(Location::caller()))?;
    let needs = done.needs(ops, program)?;
    let budgeted = BudgetedBackward { ops, program, done: &done, needs: &needs, loss, feeds };
    let sets = budgeted.sets_of_step(&asked)?;
    let choice = |(set, cost): (RecomputeSet, RecomputeCost)| {
        let again = program.root().ops.iter().zip(&set.again).filter(|(_, again)| **again);
        let vars = again.flat_map(|(op, _)| op.writes());
        RecomputeChoice { names: vars.map(|var| program.name(var).to_string()).collect(), cost }
    };
    Ok(sets.into_iter().map(choice).collect())
}

/// Rolls back the changes of a failed call. With sub-blocks, it works on a copy, because passes change them.
fn atomically<T>(program: &mut Program, call: impl FnOnce(&mut Program) -> Result<T>) -> Result<T> {
    if program.blocks().len() > 1 {
        let mut draft = program.clone();
        let found = call(&mut draft)?;
        *program = draft;
        return Ok(found);
    }
    let names = program.name_count();
    let outcome = call(program);
    if outcome.is_err() {
        program.forget_names(names);
    }
    outcome
}

/// The loss: a variable of one element that an operator computes.
fn expect_loss(program: &Program, name: &str) -> Result<Var> {
    let loss = program.expect_var(name)?;
    let desc = program.root().vars.get(&loss);
    if let Some(desc) = desc.filter(|desc| desc.dims.numel() != 1) {
        let text = format!(
            "`{name}` of shape {} is not a loss: a loss has one element; take the mean, or use `gradients`",
            desc.dims
        );
        return Err(Error::new(ErrorKind::Shape, text));
    }
    if !program.root().ops.iter().rev().any(|op| op.writes().any(|v| v == loss)) {
        return Err(Error::new(ErrorKind::NoGradient, format!("no operator computes the loss `{name}`")));
    }
    Ok(loss)
}

/// The backward pass of a loss, not yet part of the program, and the variables that gradients are asked for.
fn finish_loss(
    ops: &OpInfoMap,
    program: &mut Program,
    loss: Var,
    backward: &Backward<'_>,
    site: Site,
) -> Result<(FinishedBackward, Vec<Var>)> {
    let asked: Vec<Var> = match backward.parameters {
        Some(names) => names.iter().map(|n| program.expect_var(n)).collect::<Result<_>>()?,
        None => program.parameters().collect(),
    };
    let desc = program.root().vars.get(&loss);
    let known = desc.map(|desc| (vec![1; desc.dims.len()], desc.dtype));
    let targets = [loss];
    let mut build = BackwardBuilder::start(ops, program, &targets, &asked, false, backward.no_grad)?;
    let mut segments = CheckpointSegments::default();
    if let Recompute::Named(names @ [_, ..]) = backward.recompute {
        let names = names.iter().map(|n| program.expect_var(n)).collect::<Result<Vec<Var>>>()?;
        let mut path = build.path;
        recompute::seed(ops, program, &mut path)?;
        segments = recompute::segments(program, &path, &names);
        segments.run_loops_again(ops, program)?;
        // Its tables do not include the new seeds.
        build = BackwardBuilder {
            path,
            ..BackwardBuilder::start(ops, program, &targets, &asked, false, backward.no_grad)?
        };
    }
    let out = build.targets[0];
    let seed = match known {
        Some((shape, dtype)) => FillConstant::exactly(1.0, shape, dtype, out),
        None => FillAnyLike { x: loss, out, value: 1.0, dtype: None }.into(),
    };
    let seed = OpDesc { origin: Origin::Seed, site: Some(site), ..seed };
    Ok((build.finish(ops, program, vec![seed], &segments)?, asked))
}

fn differentiate_loss(
    ops: &OpInfoMap,
    program: &mut Program,
    loss: &str,
    backward: &Backward<'_>,
    site: Site,
) -> Result<Gradients> {
    let loss = expect_loss(program, loss)?;
    let (mut done, asked) = finish_loss(ops, program, loss, backward, site)?;
    let mut found = done.found(ops, program, &asked);
    if backward.parameters.is_some() && !backward.allow_missing && !found.missing.is_empty() {
        let reasons: Vec<_> = found.missing.iter().map(ToString::to_string).collect();
        return Err(Error::new(ErrorKind::NoGradient, reasons.join("\n")));
    }
    match backward.recompute {
        Recompute::None | Recompute::Named(_) => {}
        Recompute::Without(names) => {
            let needs = done.needs(ops, program)?;
            done.recompute(program, &needs, &needs.writers_of(program, names)?);
        }
        Recompute::Auto { budget_bytes, feeds } => {
            let needs = done.needs(ops, program)?;
            let budgeted = BudgetedBackward { ops, program, done: &done, needs: &needs, loss, feeds };
            let (again, planned) = budgeted.choose(budget_bytes)?;
            done.recompute(program, &needs, &again);
            found.recomputed.planned = Some(planned);
        }
    }
    found.recomputed.names = done.again.iter().map(|v| program.name(*v).to_string()).collect();
    if let (Recompute::Named(names), true) = (backward.recompute, done.again.is_empty()) {
        found.recomputed.without_effect = names.iter().map(ToString::to_string).collect();
    }
    done.commit(ops, program)?;
    Ok(found)
}

/// Appends the operators that compute the gradients of `targets` with respect to `inputs`. The result has, for every
/// input, its gradient or the reason why there is none.
///
/// If a variable is written several times, the version of an input is chosen as in [`append_backward`]; of targets and
/// their gradients, it is the last one.
///
/// # Errors
/// A program that [`verify`](autobwd_core::verify()) rejects; unknown names; numbers or shapes of `target_gradients`
/// that do not fit; an operator on the path without gradient; an overwritten value that cannot be copied. The program
/// is then unchanged.
#[track_caller]
pub fn gradients(
    program: &mut Program,
    targets: &[&str],
    inputs: &[&str],
    options: &GradientOptions<'_>,
) -> Result<Gradients> {
    span!("gradients", targets = targets.len(), inputs = inputs.len());
    let GradientOptions { target_gradients, no_grad, ops } = *options;
    let ops = ops_or_linked(ops)?;
    let site = Site::Here(Location::caller());
    require_valid(ops, program)?;
    let vars = |names: &[&str]| names.iter().map(|n| program.expect_var(n)).collect::<Result<Vec<Var>>>();
    let (targets, inputs) = (vars(targets)?, vars(inputs)?);
    let count = target_gradients.map_or(targets.len(), <[_]>::len);
    if targets.is_empty() || count != targets.len() {
        let text = format!("{count} target gradients are given for {} targets", targets.len());
        return Err(Error::new(ErrorKind::NoGradient, text));
    }
    let mut given = vec![];
    for (i, target) in targets.iter().enumerate() {
        let name = target_gradients.and_then(|given| given[i]);
        given.push((*target, name.map(|name| target_gradient(program, *target, name)).transpose()?));
    }
    atomically(program, |program| {
        let mut build = BackwardBuilder::start(ops, program, &targets, &inputs, true, no_grad)?;
        let mut seeds = vec![];
        for (i, (target, given)) in given.into_iter().enumerate() {
            let grad = build.targets[i];
            match given {
                // A target without gradient ignores the given one.
                Some(_) if build.no_grad[target.index()] => {}
                Some(given) => build.given.push((grad, given)),
                None => {
                    let dtype = program.root().vars.get(&target).map(|desc| desc.dtype);
                    let seed = FillAnyLike { x: target, out: grad, value: 1.0, dtype };
                    seeds.push(OpDesc { origin: Origin::Seed, site: Some(site), ..seed.into() });
                }
            }
        }
        let done = build.finish(ops, program, seeds, &CheckpointSegments::default())?;
        let found = done.found(ops, program, &inputs);
        done.commit(ops, program)?;
        Ok(found)
    })
}

/// The variable that holds the gradient of a target.
fn target_gradient(program: &Program, target: Var, name: &str) -> Result<Var> {
    let var = program.expect_var(name)?;
    let desc = |v: Var| program.root().vars.get(&v).map(VarDesc::meta);
    match (desc(var), desc(target)) {
        (Some(given), Some(meta)) if !given.clone().dense().agrees(&meta.clone().dense()) => {
            let target = program.name(target);
            let text = format!(
                "the target gradient `{name}` is {given}, but its target `{target}` is {meta}: both need the same dtype and \
                 shape"
            );
            Err(Error::new(ErrorKind::Shape, text))
        }
        _ => Ok(var),
    }
}

/// The state of a backward pass under construction.
struct BackwardBuilder<'a> {
    question: GradientRequest<'a>,
    names: GradNames,
    /// Variables that have no gradient.
    no_grad: Vec<bool>,
    /// Indices of the operators on the path, in program order.
    path: Vec<usize>,
    /// Gradients of the targets.
    targets: Vec<Var>,
    /// Gradients of targets that are existing variables.
    given: Vec<(Var, Var)>,
    /// Variables marked `stop_gradient` that are computed from a differentiable one.
    stopped: Vec<Var>,
    /// The same in sub-blocks.
    stopped_within: Vec<(BlockId, Var)>,
}

impl<'a> BackwardBuilder<'a> {
    fn start(
        ops: &OpInfoMap,
        program: &mut Program,
        targets: &'a [Var],
        asked: &'a [Var],
        only_asked: bool,
        no_grad: &[&str],
    ) -> Result<BackwardBuilder<'a>> {
        let is_tensor = |kind| matches!(kind, VarKind::Tensor | VarKind::SelectedRows);
        let listed = |v: &&Var| program.root().vars.get(v).is_some_and(|desc| !is_tensor(desc.kind));
        if let Some(var) = targets.iter().find(listed) {
            let text =
                format!("`{}` is not a tensor, so it has no gradient to start from", program.name(*var));
            return Err(Error::new(ErrorKind::NoGradient, text));
        }
        lower_control_flow::lower(ops, program, targets)?;
        let mut cut = vec![false; program.name_count()];
        for name in no_grad {
            cut[program.expect_var(name)?.index()] = true;
        }
        let marks = stop_gradients::find(ops, program, BlockId::ROOT, &cut)?;
        let counts = |var: &Var| !marks.of_data.contains(var);
        let stopped = program.root().vars.iter().filter(|(var, desc)| desc.stop_gradient && counts(var));
        stopped.for_each(|(var, _)| cut[var.index()] = true);
        let computed = relevance::computed(program, asked);
        let question = GradientRequest { block: BlockId::ROOT, targets, asked, computed, only_asked };
        let (path, _) = relevance::find(ops, program, &question, &cut)?;
        let mut names = GradNames::new(program);
        let grads: Vec<Var> = targets.iter().map(|v| names.here(program, *v)).collect();
        for (_, grad) in targets.iter().zip(&grads).filter(|(v, _)| !cut[v.index()]) {
            names.record_contribution(*grad);
        }
        Ok(BackwardBuilder {
            question,
            names,
            no_grad: cut,
            path,
            targets: grads,
            given: vec![],
            stopped: marks.cut,
            stopped_within: marks.within,
        })
    }

    fn finish(
        mut self,
        ops: &OpInfoMap,
        program: &mut Program,
        seeds: Vec<OpDesc>,
        segments: &CheckpointSegments,
    ) -> Result<FinishedBackward> {
        let GradientRequest { asked, computed, .. } = &self.question;
        let last = asked.iter().map(|v| computed[v.index()].then(|| self.names.here(program, *v)));
        let last: Vec<Option<Var>> = last.collect();
        let mut values = ValueVersions::new(program);
        let (mut emitted, mut inners) = (seeds, vec![]);
        emitted.reserve(self.path.len());
        let walk = GradientEmitter {
            ops,
            infos: Lookup::new(ops),
            templates: GradientTemplates::default(),
            program,
            block: BlockId::ROOT,
            into: BlockId::ROOT,
            no_grad: &self.no_grad,
            computed,
            names: &mut self.names,
            values: &mut values,
            emitted: &mut emitted,
            inners: &mut inners,
        };
        emit(walk, &self.path)?;
        let inserted = recompute::insert_recomputation(program, emitted, &segments.batches, &segments.held);
        let mut emitted = inserted.ops;
        let grads = asked.iter().zip(last).map(|(v, last)| last.or_else(|| self.names.known(*v)));
        let grads: Vec<Option<Var>> = grads.collect();
        let given = substitute_targets(&self.given, &grads, &mut emitted);
        let summed =
            accumulate::accumulate(program, &mut self.names, BlockId::ROOT, &FxHashSet::default(), emitted);
        let mut appended = prune::prune(program.name_count(), &self.names, &given, &self.no_grad, summed);
        let (copies, mut new) =
            preserve_overwritten::keep(ops, program, BlockId::ROOT, &values, &mut appended)?;
        new.extend(inserted.vars);
        let (vars, inner_vars) = declare::declare(ops, program, &self.names, new, &appended, &inners)?;
        let made = |(var, grad): (&Var, Option<Var>)| {
            grad.filter(|grad| vars.contains_key(grad) && !self.no_grad[var.index()])
        };
        let grads = asked.iter().zip(grads).map(made).collect();
        let targets = self.question.targets.to_vec();
        let (no_grad, again) = (self.no_grad, inserted.again);
        Ok(FinishedBackward {
            copies,
            ops: appended,
            vars,
            inner_vars,
            grads,
            targets,
            no_grad,
            stopped: self.stopped,
            stopped_within: self.stopped_within,
            again,
        })
    }
}

/// Uses the given variables as gradients of targets; makes a copy if there are other contributions or the gradient is
/// requested. Returns the variables used.
fn substitute_targets(
    given: &[(Var, Var)],
    asked: &[Option<Var>],
    emitted: &mut Vec<OpDesc>,
) -> FxHashSet<Var> {
    if given.is_empty() {
        return FxHashSet::default();
    }
    let mut writers: FxHashMap<Var, usize> = FxHashMap::default();
    let written = emitted.iter().flat_map(OpDesc::writes).chain(asked.iter().flatten().copied());
    for grad in written.chain(given.iter().map(|(grad, _)| *grad)) {
        *writers.entry(grad).or_default() += 1;
    }
    let (copied, stand): (Vec<_>, Vec<_>) = given.iter().partition(|(grad, _)| writers[grad] > 1);
    let stand: FxHashMap<Var, Var> = stand.into_iter().collect();
    for arg in emitted.iter_mut().flat_map(|op| op.inputs.args_mut()) {
        *arg = stand.get(arg).copied().unwrap_or(*arg);
    }
    let copy =
        |(grad, given): (Var, Var)| OpDesc { origin: Origin::Seed, ..Assign { x: given, out: grad }.into() };
    emitted.splice(0..0, copied.into_iter().map(copy));
    stand.into_values().collect()
}
