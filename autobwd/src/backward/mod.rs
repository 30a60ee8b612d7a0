//! Building the backward part of a program: operators in, operators out.
//!
//! Must not run a kernel. Each pass is a function over plain data, in call order:
//!
//! 1. `path::find`: which operators the targets depend on, through variables that may have a gradient.
//! 2. `recompute::seed` and `recompute::segments`, where checkpoints are named: what they lead to.
//! 3. `emit::emit`: the gradient operators of those on the path, in reverse.
//! 4. `recompute::weave`: segments are computed again before their gradients.
//! 5. `accumulate::accumulate`: several contributions to one gradient get names of their own and are summed.
//! 6. `prune::prune`: operators without incoming gradient go; missing gradients of others are filled with zeros.
//! 7. `declare::declare`: new variables get dtype and shape.
//! 8. `recompute::weave` again, for variables that are not to be kept; `budget::choose` finds those for a budget.
//!
//! Nothing is changed before all of them have succeeded.

mod accumulate;
mod budget;
mod checkpoints;
mod declare;
mod emit;
mod names;
mod path;
mod prune;
mod recompute;
mod report;

use crate::{Attr, BlockId, Error, ErrorKind, OpDesc, OpInfoMap, Origin, Program, Result, Site, Var};
pub use checkpoints::{Checkpoints, Planned, Recomputed};
use names::GradNames;
use recompute::{Needs, Segments};
pub use report::{Cut, Missing};
use rustc_hash::FxHashSet;

/// What to differentiate with respect to, and what not to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Backward<'a> {
    /// The parameters (or other variables) whose gradients are asked for; all parameters of the program when `None`.
    pub parameters: Option<&'a [&'a str]>,
    /// Variables without gradient, beside those marked `stop_gradient`.
    pub no_grad: &'a [&'a str],
    /// Which forward values are kept for the backward part; the others are computed again.
    pub checkpoints: Checkpoints<'a>,
    /// Whether gradients asked for by name may be missing.
    pub allow_missing: bool,
}

/// What [`append_backward`] has found.
#[derive(Clone, Debug, Default)]
pub struct Gradients {
    /// Parameters with their gradients, in the order asked for.
    pub pairs: Vec<(Var, Var)>,
    /// Parameters without gradient, each with the reason.
    pub missing: Vec<Missing>,
    /// What the backward part computes again.
    pub recomputed: Recomputed,
}

/// Appends the operators that compute the derivative of `loss` with respect to the parameters, using the operators that
/// this binary links.
///
/// The gradient of `w` is the variable `w@GRAD`.
///
/// # Errors
/// A loss of more than one element; unknown names; an operator on the way without gradient; a parameter asked for by
/// name that has no gradient (unless `allow_missing`); a value that is overwritten before the backward part needs it;
/// a variable that cannot be computed again, a budget that cannot be met. The program is then unchanged.
#[track_caller]
pub fn append_backward(program: &mut Program, loss: &str, backward: &Backward<'_>) -> Result<Gradients> {
    append_backward_in(OpInfoMap::linked()?, program, loss, backward)
}

/// As [`append_backward`], with these operators.
///
/// # Errors
/// As [`append_backward`].
#[track_caller]
pub fn append_backward_in(
    ops: &OpInfoMap,
    program: &mut Program,
    loss: &str,
    backward: &Backward<'_>,
) -> Result<Gradients> {
    let site = Site::Here(std::panic::Location::caller());
    let Checkpoints::Named(&[_, ..]) = backward.checkpoints else {
        return append(ops, program, loss, backward, site);
    };
    // Random operators are given seeds before anything can fail.
    let mut draft = program.clone();
    let found = append(ops, &mut draft, loss, backward, site)?;
    *program = draft;
    Ok(found)
}

fn append(
    ops: &OpInfoMap,
    program: &mut Program,
    loss: &str,
    backward: &Backward<'_>,
    site: Site,
) -> Result<Gradients> {
    let loss = program.expect_var(loss)?;
    let asked: Vec<Var> = match backward.parameters {
        Some(names) => names.iter().map(|n| program.expect_var(n)).collect::<Result<_>>()?,
        None => program.parameters().collect(),
    };
    let name = program.name(loss);
    let Some(desc) = program.root().vars.get(&loss) else {
        return Err(Error::internal("a loss that is not declared"));
    };
    if desc.dims.numel() != 1 {
        let text = format!(
            "`{name}` of shape {} is no loss: a loss has one element; take the mean, or use `gradients`",
            desc.dims
        );
        return Err(Error::new(ErrorKind::Shape, text));
    }
    if !program.root().ops.iter().any(|op| op.writes().any(|v| v == loss)) {
        return Err(Error::new(ErrorKind::NoGradient, format!("no operator computes `{name}`")));
    }
    // A rank of 0 stays; everything else is seeded with shape [1], as the reference does.
    let shape = if desc.dims.is_empty() { vec![] } else { vec![1] };
    let dtype = desc.dtype;
    let mut build = Build::start(ops, program, &[loss], None, backward.no_grad)?;
    let segments = match backward.checkpoints {
        Checkpoints::Named(names @ [_, ..]) => {
            let names = names.iter().map(|n| program.expect_var(n)).collect::<Result<Vec<Var>>>()?;
            recompute::seed(ops, program, &mut build.path)?;
            recompute::segments(program, &build.path, &names)
        }
        _ => Segments::default(),
    };
    let seed = OpDesc::new("fill_constant")
        .output("Out", [build.names.of_output(loss)])
        .attr("shape", Attr::I64s(shape))
        .attr("dtype", Attr::I32(dtype.code()))
        .attr("value", Attr::F32(1.0));
    let seed = OpDesc { origin: Origin::Seed, site: Some(site), ..seed };
    let mut done = build.finish(ops, program, vec![seed], &asked, &segments)?;

    let mut found = Gradients::default();
    for (var, grad) in asked.iter().zip(&done.grads) {
        match grad {
            Some(grad) => found.pairs.push((*var, *grad)),
            None => found.missing.push(report::why(ops, program, &done.no_grad, &[loss], *var)),
        }
    }
    if backward.parameters.is_some() && !backward.allow_missing && !found.missing.is_empty() {
        let reasons: Vec<_> = found.missing.iter().map(ToString::to_string).collect();
        return Err(Error::new(ErrorKind::NoGradient, reasons.join("\n")));
    }
    match backward.checkpoints {
        Checkpoints::None | Checkpoints::Named(_) => {}
        Checkpoints::Without(names) => {
            let needs = done.needs(ops, program)?;
            done.recompute(program, &needs, &needs.writers_of(program, names)?);
        }
        Checkpoints::Auto { budget_bytes, feeds } => {
            let needs = done.needs(ops, program)?;
            let (again, planned) = budget::choose(ops, program, &done, &needs, loss, budget_bytes, feeds)?;
            done.recompute(program, &needs, &again);
            found.recomputed.planned = Some(planned);
        }
    }
    found.recomputed.names = done.again.iter().map(|v| program.name(*v).to_string()).collect();
    done.commit(program);
    Ok(found)
}

/// Appends the operators that compute the derivatives of `targets` with respect to `inputs`, using the operators that
/// this binary links: for each input its gradient, or `None` where the targets do not depend on it.
///
/// `target_gradients` are the variables that hold the derivative of whatever comes after each target; where there is
/// none, it is taken as ones.
///
/// # Errors
/// Unknown names; numbers or shapes of `target_gradients` that do not fit; an operator on the way without gradient; a
/// value that is overwritten before the backward part needs it. The program is then unchanged.
#[track_caller]
pub fn gradients(
    program: &mut Program,
    targets: &[&str],
    inputs: &[&str],
    target_gradients: Option<&[Option<&str>]>,
    no_grad: &[&str],
) -> Result<Vec<Option<Var>>> {
    gradients_in(OpInfoMap::linked()?, program, targets, inputs, target_gradients, no_grad)
}

/// As [`gradients`], with these operators.
///
/// # Errors
/// As [`gradients`].
#[track_caller]
pub fn gradients_in(
    ops: &OpInfoMap,
    program: &mut Program,
    targets: &[&str],
    inputs: &[&str],
    target_gradients: Option<&[Option<&str>]>,
    no_grad: &[&str],
) -> Result<Vec<Option<Var>>> {
    let site = Site::Here(std::panic::Location::caller());
    let vars = |names: &[&str]| names.iter().map(|n| program.expect_var(n)).collect::<Result<Vec<Var>>>();
    let (targets, inputs) = (vars(targets)?, vars(inputs)?);
    let given = target_gradients.unwrap_or(&[]);
    if targets.is_empty() || (target_gradients.is_some() && given.len() != targets.len()) {
        let text = format!("{} target gradients for {} targets", given.len(), targets.len());
        return Err(Error::new(ErrorKind::NoGradient, text));
    }
    let mut build = Build::start(ops, program, &targets, Some(&inputs), no_grad)?;
    let mut seeds = vec![];
    for (i, target) in targets.iter().enumerate() {
        let grad = build.names.of_output(*target);
        match given.get(i).copied().flatten() {
            Some(name) => {
                let var = program.expect_var(name)?;
                let desc = |v: Var| program.root().vars.get(&v).map(|d| d.meta().in_slot("target gradient"));
                if let (Some(given), Some(target)) = (desc(var), desc(*target)) {
                    given.same_as(&target)?;
                }
                build.given.push((grad, var));
            }
            None => {
                let dtype = program.root().vars.get(target).map_or(-1, |d| d.dtype.code());
                let seed = OpDesc::new("fill_any_like")
                    .input("X", [*target])
                    .output("Out", [grad])
                    .attr("value", Attr::F32(1.0))
                    .attr("dtype", Attr::I32(dtype));
                seeds.push(OpDesc { origin: Origin::Seed, site: Some(site), ..seed });
            }
        }
    }
    let done = build.finish(ops, program, seeds, &inputs, &Segments::default())?;
    let grads = done.grads.clone();
    done.commit(program);
    Ok(grads)
}

/// A backward part in the making.
struct Build {
    names: GradNames,
    /// Variables that have no gradient.
    no_grad: Vec<bool>,
    /// Indices of the operators on the path, in program order.
    path: Vec<usize>,
    /// Gradients of targets that are existing variables.
    given: Vec<(Var, Var)>,
    targets: Vec<Var>,
}

impl Build {
    fn start(
        ops: &OpInfoMap,
        program: &mut Program,
        targets: &[Var],
        inputs: Option<&[Var]>,
        no_grad: &[&str],
    ) -> Result<Build> {
        program.own_variables()?;
        let mut cut = vec![false; program.name_count()];
        for name in no_grad {
            cut[program.expect_var(name)?.index()] = true;
        }
        let stopped = program.root().vars.iter().filter(|(_, desc)| desc.stop_gradient);
        stopped.for_each(|(var, _)| cut[var.index()] = true);
        let path = path::find(ops, program, targets, inputs, &cut)?;
        path::cut_unread(program, targets, &path, &mut cut);
        let names = GradNames::new(program, &path, targets, inputs.unwrap_or(&[]));
        Ok(Build { names, no_grad: cut, path, given: vec![], targets: targets.to_vec() })
    }

    fn finish(
        mut self,
        ops: &OpInfoMap,
        program: &mut Program,
        seeds: Vec<OpDesc>,
        asked: &[Var],
        segments: &Segments,
    ) -> Result<Done> {
        let raw = emit::emit(ops, program, &self.path, &self.no_grad, &mut self.names)?;
        let recompute::Woven { ops: mut raw, vars, again } =
            recompute::weave(program, raw, &segments.batches, &segments.held);
        let mut emitted = seeds;
        for (grad, given) in &self.given {
            if raw.iter().any(|op| op.writes().any(|v| v == *grad)) {
                // On another target's path: what was given and what comes back are added.
                let copy = OpDesc::new("assign").input("X", [*given]).output("Out", [*grad]);
                emitted.push(OpDesc { origin: Origin::Seed, ..copy });
            } else {
                raw.iter_mut()
                    .flat_map(|op| op.inputs.args_mut())
                    .filter(|v| **v == *grad)
                    .for_each(|v| *v = *given);
            }
        }
        emitted.append(&mut raw);
        let given: Vec<Var> = self.given.iter().map(|(_, given)| *given).collect();
        let summed = accumulate::accumulate(program, &mut self.names, emitted);
        let pruned = prune::prune(&self.names, &given, &self.no_grad, summed);
        let declared = declare::declare(ops, program, &self.names, pruned, vars)?;
        let new: FxHashSet<Var> = declared.vars.iter().map(|(v, _)| *v).collect();
        let mut grads = vec![];
        for var in asked {
            let grad = self.names.of_input(*var);
            let seed = self.targets.contains(var).then(|| self.names.of_output(*var));
            let made = |g: &Var| new.contains(g);
            grads.push(Some(grad).filter(made).or(seed.filter(made)));
        }
        Ok(Done { ops: declared.ops, vars: declared.vars, grads, no_grad: self.no_grad, again })
    }
}

/// A backward part that only needs to be appended.
struct Done {
    ops: Vec<OpDesc>,
    vars: Vec<(Var, crate::VarDesc)>,
    /// By variable asked for.
    grads: Vec<Option<Var>>,
    no_grad: Vec<bool>,
    /// Forward variables that are computed again.
    again: Vec<Var>,
}

impl Done {
    fn needs(&self, ops: &OpInfoMap, program: &Program) -> Result<Needs> {
        Needs::of(ops, program, &self.ops, self.grads.iter().flatten().copied())
    }

    /// Computes these operators again instead of keeping what they compute.
    fn recompute(&mut self, program: &mut Program, needs: &Needs, again: &[bool]) {
        let woven = recompute::weave(program, std::mem::take(&mut self.ops), &needs.batches(again), &[]);
        self.ops = woven.ops;
        self.vars.extend(woven.vars);
        self.again = woven.again;
    }

    fn commit(self, program: &mut Program) {
        let root = program.root_mut();
        root.vars.extend(self.vars);
        root.ops.extend(self.ops);
        debug_assert!(program.block(BlockId::ROOT).is_some());
    }
}
