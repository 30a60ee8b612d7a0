//! Gradient accumulation: one update for the gradients of several batches.

use rustc_hash::FxHashSet;

use autobwd_core::{
    __private::internals::*,
    Error, ErrorKind, OpDesc, OpInfoMap, Origin, Program, Result, Var, VarDesc, VarKind,
    operators::{FillConstant, FillZerosLike, Sum},
    verify::require_valid,
};

use crate::gradients::{divide, find};

/// A training step in two programs: the second runs after the first has run several times.
#[derive(Clone, Debug)]
pub struct Accumulation {
    /// Computes the gradients of one batch and adds them to the sums.
    pub gradients: Program,
    /// Updates the parameters by the sums, and sets these to zero.
    pub update: Program,
    /// Sets the sums to zero; to be run once, at the start.
    pub startup: Program,
}

/// Divides a training step in two, so that it updates the parameters once for `batches` batches, by the mean of their
/// gradients (gradient accumulation): as a batch that is `batches` times larger, in the memory of a small one.
///
/// Gradients are divided by `batches` where the backward pass starts, and summed in `w@GRAD@MERGED`, batch after batch.
/// Operators that depend on gradients of parameters (clipping, updates) are in the second program, all others in the
/// first.
///
/// ```
/// use autobwd::{Builder, DType, Executor, Scope, Tensor, parallel::accumulate};
/// use autobwd_ops::{Init, Math, optim::{Optimizer, Sgd}};
///
/// let net = Builder::new();
/// let w = net.parameter("w", DType::F64, &[1], |w| Init::Constant(1.0).emit(w, 0));
/// let loss = (net.input("x", DType::F64, &[1]) * &w).mean();
/// Sgd { rate: 1.0 }.minimize(&loss)?.complete()?;
///
/// let (mut executor, mut scope) = (Executor::new(), Scope::new());
/// let step = accumulate(&net.program()?, 2)?;
/// executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
/// executor.run(&step.startup, &mut scope, &[], &[])?;
/// for x in [0.5, 0.25] {
///     executor.run(&step.gradients, &mut scope, &[("x", &Tensor::from_vec([1], vec![x])?)], &[])?;
/// }
/// executor.run(&step.update, &mut scope, &[], &[])?;
/// assert_eq!(scope.get("w")?.item()?, 1.0 - 0.375);
/// # Ok::<(), autobwd::Error>(())
/// ```
///
/// # Errors
/// An invalid program; one without gradients of parameters, or with further gradients computed from them; no batches; an
/// update that reads a value of the batch.
pub fn accumulate(program: &impl AsRef<Program>, batches: usize) -> Result<Accumulation> {
    let program = program.as_ref();
    let ops = OpInfoMap::linked()?;
    require_valid(ops, program)?;
    if batches == 0 {
        return Err(Error::new(ErrorKind::Program, "gradients of 0 batches have no mean"));
    }
    let (mut gradients, mut startup) = (program.clone(), Program::new());
    startup.mark_startup();
    let found = find(&gradients)?;
    divide(&mut gradients, batches)?;

    let mut sums: Vec<(Var, Var)> = vec![];
    for gradient in found {
        let desc = gradients.root().vars.get(&gradient.gradient);
        let desc = desc.ok_or_else(|| Error::internal("a gradient without declaration"))?;
        let desc = VarDesc { kind: VarKind::Tensor, persistable: true, ..desc.clone() };
        let name = format!("{}@MERGED", gradients.name(gradient.gradient));
        let shape = desc.dims.iter().map(|dim| dim.wire()).collect();
        let started = startup.var(&name);
        startup.root_mut().ops.push(FillConstant::exactly(0.0, shape, desc.dtype, started));
        startup.root_mut().vars.insert(started, VarDesc { gradient_of: None, ..desc.clone() });
        let sum = gradients.var(&name);
        gradients.root_mut().vars.insert(sum, desc);
        sums.push((gradient.gradient, sum));
    }

    let mut update = gradients.clone();
    update.truncate_blocks(1);
    update.root_mut().ops = split_off_updates(&mut gradients, &sums);
    update.root_mut().ops.extend(sums.iter().map(|(_, sum)| FillZerosLike { x: *sum, out: *sum }.into()));
    let added = sums.iter().map(|(gradient, sum)| Sum { x: vec![*sum, *gradient], out: *sum }.into());
    gradients.root_mut().ops.extend(added);
    for program in [&mut gradients, &mut update] {
        declare_used(program);
        require_valid(ops, program)?;
    }
    Ok(Accumulation { gradients, update, startup })
}

/// Takes the operators out that depend on gradients of parameters; they read the sums instead.
fn split_off_updates(program: &mut Program, sums: &[(Var, Var)]) -> Vec<OpDesc> {
    let mut dependent: FxHashSet<Var> = sums.iter().map(|(gradient, _)| *gradient).collect();
    let (mut updates, mut others) = (vec![], vec![]);
    for mut op in std::mem::take(&mut program.root_mut().ops) {
        if op.origin != Origin::Model || !op.reads().any(|v| dependent.contains(&v)) {
            others.push(op);
            continue;
        }
        dependent.extend(op.writes());
        for var in op.inputs.args_mut() {
            if let Some((_, sum)) = sums.iter().find(|(gradient, _)| gradient == var) {
                *var = *sum;
            }
        }
        updates.push(op);
    }
    program.root_mut().ops = others;
    updates
}

/// Removes the declarations of variables that no operator uses.
fn declare_used(program: &mut Program) {
    let ops = program.blocks().iter().flat_map(|block| &block.ops);
    let used: FxHashSet<Var> = ops.flat_map(|op| op.reads().chain(op.writes())).collect();
    let vars = std::mem::take(&mut program.root_mut().vars);
    program.root_mut().vars.extend(vars.into_iter().filter(|(var, _)| used.contains(var)));
}
