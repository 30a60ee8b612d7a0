//! Gradient accumulation: one update for the gradients of several batches.

use rustc_hash::{FxHashMap, FxHashSet};

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
/// Operators that depend on gradients of parameters (clipping, updates) are in the second program, with all that these
/// read and that is computed from kept values alone: the schedule of a learning rate goes on once for all batches. The
/// other operators are in the first.
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
    declare_dense(ops, &mut update)?;
    for program in [&mut gradients, &mut update] {
        declare_used(program);
        require_valid(ops, program)?;
    }
    Ok(Accumulation { gradients, update, startup })
}

/// Takes the operators out that run once for all batches; they read the sums instead of gradients.
fn split_off_updates(program: &mut Program, sums: &[(Var, Var)]) -> Vec<OpDesc> {
    let inner = program.blocks().iter().skip(1).flat_map(|block| &block.ops).flat_map(OpDesc::reads);
    let mut read_by_batch: FxHashSet<Var> = inner.collect();
    let root = program.root_mut();
    let is_kept = |var: Var| root.vars.get(&var).is_some_and(|desc| desc.persistable);
    let mut dependent: FxHashSet<Var> = sums.iter().map(|(gradient, _)| *gradient).collect();
    let (mut of_kept, mut uses) = (FxHashSet::default(), vec![]);
    for op in &root.ops {
        let is_model = op.origin == Origin::Model;
        uses.push(if is_model && op.reads().any(|var| dependent.contains(&var)) {
            dependent.extend(op.writes());
            OpUse::Update
        } else if is_model
            && op.attrs.blocks().next().is_none()
            && op.reads().all(|var| is_kept(var) || of_kept.contains(&var))
        {
            of_kept.extend(op.writes());
            OpUse::OfKept
        } else {
            op.writes().for_each(|var| _ = of_kept.remove(&var));
            read_by_batch.extend(op.reads());
            OpUse::Batch
        });
    }
    // Kept values that each batch reads change with each batch.
    let mut writers: FxHashMap<Var, Vec<usize>> = FxHashMap::default();
    for (i, op) in root.ops.iter().enumerate().filter(|(i, _)| uses[*i] == OpUse::OfKept) {
        if !op.writes().any(|var| is_kept(var) && read_by_batch.contains(&var)) {
            op.writes().for_each(|var| writers.entry(var).or_default().push(i));
        }
    }
    let updates = root.ops.iter().zip(&uses).filter(|(_, op_use)| **op_use == OpUse::Update);
    let mut needed: Vec<Var> = updates.flat_map(|(op, _)| op.reads()).collect();
    while let Some(var) = needed.pop() {
        for i in writers.remove(&var).unwrap_or_default() {
            let op = &root.ops[i];
            uses[i] = if op.writes().any(is_kept) { OpUse::Update } else { OpUse::Shared };
            needed.extend(op.reads());
        }
    }
    let sum_of: FxHashMap<Var, Var> = sums.iter().copied().collect();
    let (mut updates, mut others) = (vec![], vec![]);
    for (mut op, op_use) in std::mem::take(&mut root.ops).into_iter().zip(uses).rev() {
        let is_read_by_batch = op.writes().any(|var| read_by_batch.contains(&var));
        if matches!(op_use, OpUse::Batch | OpUse::OfKept) || (op_use == OpUse::Shared && is_read_by_batch) {
            read_by_batch.extend(op.reads());
            others.push(op.clone());
        }
        if matches!(op_use, OpUse::Update | OpUse::Shared) {
            for var in op.inputs.args_mut() {
                *var = sum_of.get(var).copied().unwrap_or(*var);
            }
            updates.push(op);
        }
    }
    others.reverse();
    updates.reverse();
    root.ops = others;
    updates
}

/// How often an operator runs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OpUse {
    /// Once a batch.
    Batch,
    /// Once a batch: it depends on kept values alone, and the update does not need it.
    OfKept,
    /// Once for all batches, and once a batch where a batch needs it: it depends on kept values alone and changes none.
    Shared,
    /// Once for all batches.
    Update,
}

/// Declares results of the sums as dense, where they are row-sparse results of sparse gradients.
fn declare_dense(ops: &OpInfoMap, update: &mut Program) -> Result<()> {
    for i in 0..update.root().ops.len() {
        let root = update.root();
        let op = &root.ops[i];
        let is_sparse = |var: &Var| root.vars.get(var).is_some_and(|desc| desc.kind == VarKind::SelectedRows);
        if !op.writes().any(|var| is_sparse(&var)) {
            continue;
        }
        let of =
            |var: Var| root.vars.get(&var).map(VarDesc::meta).ok_or_else(|| Error::internal("not declared"));
        let mut dense = vec![];
        ops.get(&op.ty)?.infer(op, &of, &mut |var, meta| dense.extend(meta.rows.is_none().then_some(var)))?;
        for var in dense {
            if let Some(desc) = update.root_mut().vars.get_mut(&var) {
                desc.kind = VarKind::Tensor;
            }
        }
    }
    Ok(())
}

/// Removes the declarations of variables that no operator uses.
fn declare_used(program: &mut Program) {
    let ops = program.blocks().iter().flat_map(|block| &block.ops);
    let used: FxHashSet<Var> = ops.flat_map(|op| op.reads().chain(op.writes())).collect();
    let vars = std::mem::take(&mut program.root_mut().vars);
    program.root_mut().vars.extend(vars.into_iter().filter(|(var, _)| used.contains(var)));
}
