//! A program for one sample, rewritten for many: `vmap`, as in JAX.
//!
//! Values that depend on a sample get an axis of samples in front. An operator is rewritten by the first way that fits:
//! - it reads no such value, so that it stays as it is;
//! - it has a rule here (`rules`);
//! - it has a formula, which broadcasts;
//! - it has a composition, whose operators are rewritten instead;
//! - it is repeated for each sample.

mod rules;
mod sample_axis;

use std::collections::HashSet;

use autobwd::{BlockId, Error, ErrorKind, Meta, OpDesc, OpInfoMap, Program, Result, program::Var};

use self::{rules::rule_of, sample_axis::SampleAxis};
use super::{infer_shapes, inference::prune, lower};

/// A program that computes the same for several samples.
#[derive(Clone, Debug)]
pub struct VectorizedProgram {
    /// The program. Its feeds have the names of the feeds of one sample, and an axis of samples in front.
    pub program: Program,
    /// The variables to fetch, each with an axis of samples in front.
    pub fetches: Vec<String>,
}

/// Rewrites a program for one sample as a program for `count` samples: `feeds` are the values that differ between samples,
/// in the shape of one sample. All other values are the same for all samples.
///
/// A gradient that is fetched becomes the gradients of all samples: compute gradients first, then call `vmap`.
///
/// ```
/// use autobwd::{Backward, Builder, DType, Executor, Meta, OpInfoMap, Scope, Tensor};
/// use autobwd_ops::{Init, Math, model::vmap, optim::compute_gradients};
/// let net = Builder::new();
/// let x = net.input("x", DType::F32, &[2]);
/// let w = net.parameter("w", DType::F32, &[2], |w| Init::Constant(1.0).emit(w, 0));
/// let loss = x.matmul(&w).square();
/// let gradient = compute_gradients(&loss, &Backward::default())?.complete()?[0].1.name();
/// let all = vmap(&*net.program()?, OpInfoMap::linked()?, 3, &[("x", x.meta())], &[&gradient])?;
///
/// let (mut executor, mut scope) = (Executor::new(), Scope::new());
/// executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
/// let x = Tensor::from_vec([3, 2], vec![1.0_f32, 0.0, 0.0, 1.0, 1.0, 1.0])?;
/// let fetches: Vec<&str> = all.fetches.iter().map(String::as_str).collect();
/// let found = executor.run(&all.program, &mut scope, &[("x", &x)], &fetches)?;
/// assert_eq!(found[0], Tensor::from_vec([3, 2], vec![2.0_f32, 0.0, 0.0, 2.0, 4.0, 4.0])?); // 2 · (x · w) · x
/// # Ok::<(), autobwd::Error>(())
/// ```
///
/// The method is the one of Bradbury et al., "JAX: composable transformations of Python+NumPy programs", 2018.
///
/// # Errors
/// Unknown variables; dimensions that are unknown in spite of the feeds. Of operators that depend on a sample: control flow;
/// tensor arrays and row-sparse gradients; changes of a value that the program keeps, such as updates: take the program
/// without them.
pub fn vmap(
    program: &Program,
    ops: &OpInfoMap,
    count: usize,
    feeds: &[(&str, Meta)],
    fetches: &[&str],
) -> Result<VectorizedProgram> {
    if count == 0 {
        return Err(Error::new(ErrorKind::Feed, "at least one sample is needed"));
    }
    let mut single = prune(program, fetches)?;
    let mut sampled = HashSet::new();
    for (name, meta) in feeds {
        let var = program.expect_var(name)?;
        sampled.insert(var);
        // A feed that no fetch needs.
        let Some(desc) = single.root_mut().vars.get_mut(&var) else { continue };
        (desc.dtype, desc.dims) = (meta.dtype, meta.dims.clone());
    }
    infer_shapes(&mut single, ops);
    let shared = independent(&single, &sampled);
    let single = lower(&single, ops, |program, block, op| {
        let stays = block != BlockId::ROOT || op.reads().all(|var| shared.contains(&var));
        Ok(stays || ops.get(&op.ty)?.is_control() || rule_of(program, op)?.is_some() || has_formula(ops, op)?)
    })?;
    let fetched = fetches.iter().map(|name| single.expect_var(name)).collect::<Result<Vec<_>>>()?;
    let mut work = SampleAxis::new(&single, ops, (count, &sampled), &fetched)?;
    for (index, op) in single.root().ops.iter().enumerate() {
        let place = || single.describe_op(BlockId::ROOT, index, op);
        rewrite(&mut work, op).map_err(|e| Error::new(e.kind(), format!("{}: {}", place(), e.message())))?;
    }
    let fetched = fetched.into_iter().map(|var| work.sampled(var)).collect::<Result<Vec<_>>>()?;
    work.finish(ops, &fetched)
}

/// Variables that depend on no sample.
fn independent(program: &Program, sampled: &HashSet<Var>) -> HashSet<Var> {
    let mut dependent = sampled.clone();
    for op in &program.root().ops {
        if op.reads().any(|var| dependent.contains(&var)) {
            dependent.extend(op.writes());
        }
    }
    program.root().vars.keys().copied().filter(|var| !dependent.contains(var)).collect()
}

fn has_formula(ops: &OpInfoMap, op: &OpDesc) -> Result<bool> {
    Ok(ops.get(&op.ty)?.formula(op)?.is_some())
}

fn rewrite(work: &mut SampleAxis<'_>, op: &OpDesc) -> Result<()> {
    if !op.reads().any(|var| work.is_sampled(var)) {
        return work.keep(op);
    }
    let info = work.ops.get(&op.ty)?;
    let refuse = |text: String| Err(Error::new(ErrorKind::Unsupported, text));
    if info.is_control() {
        return refuse("control flow that depends on a sample cannot be written for all samples".into());
    }
    if let Some(var) = op.writes().find(|var| work.is_kept_value(*var)) {
        return refuse(format!(
            "it changes `{}`, which the program keeps; take the program without updates",
            work.single.name(var)
        ));
    }
    if let Some(var) = op.reads().chain(op.writes()).find(|var| work.is_not_dense(*var)) {
        let name = work.single.name(var);
        return refuse(format!("`{name}` is a tensor array or row-sparse, and has no axis of samples"));
    }
    match rule_of(work.single, op)? {
        Some(rule) => rule.apply(work, op),
        None if has_formula(work.ops, op)? => work.pointwise(info, op),
        None => work.each_sample(op),
    }
}
