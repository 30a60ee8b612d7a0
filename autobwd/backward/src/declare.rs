//! Shape inference for the variables that the backward pass adds.

use crate::{grad_names::GradNames, gradient_ops::block::PendingGradBlock};
use autobwd_core::{
    __private::{Lookup, ShapeCache, internals::*},
    BlockId, DType, Error, ErrorKind, Meta, OpDesc, OpInfoMap, Program, Result, Var, VarDesc, VarKind, Vars,
};

/// The declarations of enclosing blocks, from the inside out.
struct BlockDeclarations<'a> {
    vars: &'a Vars,
    around: Option<&'a BlockDeclarations<'a>>,
}

impl BlockDeclarations<'_> {
    fn get(&self, var: Var) -> Option<&VarDesc> {
        self.vars.get(&var).or_else(|| self.around?.get(var))
    }
}

/// The operators to be appended to a block.
struct AppendedOps<'a> {
    block: BlockId,
    names: &'a GradNames,
    ops: &'a [OpDesc],
}

/// Runs the shape rules of the operators to be appended to the root block. Returns the new variables, and the variables
/// of gradients of sub-blocks (`inners`). A gradient has dtype and shape of its variable, any other output has what the
/// shape rule says. `new` already contains the copies.
///
/// # Errors
/// The errors of the shape rules: a gradient rule whose operators do not fit each other.
pub(super) fn declare(
    ops: &OpInfoMap,
    program: &Program,
    names: &GradNames,
    new: Vars,
    appended: &[OpDesc],
    inners: &[PendingGradBlock],
) -> Result<(Vars, Vec<(BlockId, Vars)>)> {
    let mut declare = ShapeInference::new(ops, program, inners);
    let vars = declare.part(&AppendedOps { block: BlockId::ROOT, names, ops: appended }, new, None)?;
    Ok((vars, declare.inner_vars))
}

/// The same for a gradient block alone, the last of `inners`, which belongs to no operator yet.
///
/// # Errors
/// As [`declare`].
pub(super) fn declare_block(
    ops: &OpInfoMap,
    program: &Program,
    inners: &[PendingGradBlock],
) -> Result<Vec<(BlockId, Vars)>> {
    let mut declare = ShapeInference::new(ops, program, inners);
    if let Some(inner) = inners.last() {
        declare.inner(inner, &BlockDeclarations { vars: &Vars::default(), around: None })?;
    }
    Ok(declare.inner_vars)
}

struct ShapeInference<'a> {
    ops: Lookup<'a>,
    shapes: ShapeCache,
    program: &'a Program,
    inners: &'a [PendingGradBlock],
    inner_vars: Vec<(BlockId, Vars)>,
}

/// The error for a gradient that one writer makes sparse (rows of a tensor) and another dense.
fn mixed_sparsity(program: &Program, var: Var) -> Error {
    let name = program.name(var);
    let text = format!(
        "`{name}` is sparse (rows of a tensor) for one of its writers and dense for this one, since values carried \
         from step to step are dense: look up that variable with `is_sparse = false`"
    );
    Error::new(ErrorKind::NoGradient, text)
}

/// Whether a variable belongs to the forward block; outside of it, the same name may mean another variable.
fn is_own(program: &Program, block: BlockId, var: Var) -> bool {
    let forward = program.block(block).and_then(|block| program.block(block.forward?));
    forward.is_some_and(|forward| forward.vars.contains_key(&var))
}

impl<'a> ShapeInference<'a> {
    fn new(ops: &'a OpInfoMap, program: &'a Program, inners: &'a [PendingGradBlock]) -> ShapeInference<'a> {
        ShapeInference {
            ops: Lookup::new(ops),
            shapes: ShapeCache::default(),
            program,
            inners,
            inner_vars: vec![],
        }
    }

    fn inner(&mut self, inner: &PendingGradBlock, near: &BlockDeclarations<'_>) -> Result<()> {
        let program = self.program;
        let ops = program.block(inner.block).map_or(&[][..], |block| &block.ops);
        let mut found = Vars::default();
        for (grad, var) in &inner.given {
            // Outside of the block it may be rows of a tensor; inside it is dense.
            let around = near.get(*grad).or_else(|| program.lookup(inner.block, *grad));
            let seen = around.is_some_and(|desc| desc.kind != VarKind::SelectedRows)
                && !is_own(program, inner.block, *var);
            if let Some(desc) = program.lookup(inner.block, *var).filter(|_| !seen) {
                let VarDesc { kind, dtype, ref dims, .. } = *desc;
                let kind = if kind == VarKind::SelectedRows { VarKind::Tensor } else { kind };
                let own = VarDesc { kind, ..VarDesc::new(dtype, dims.clone()) };
                found.insert(*grad, VarDesc { gradient_of: Some(*var), ..own });
            }
        }
        let part = AppendedOps { block: inner.block, names: &inner.names, ops };
        let vars = self.part(&part, found, Some(near))?;
        self.inner_vars.push((inner.block, vars));
        Ok(())
    }

    fn part(
        &mut self,
        part: &AppendedOps<'_>,
        mut new: Vars,
        around: Option<&BlockDeclarations<'_>>,
    ) -> Result<Vars> {
        let (program, inners) = (self.program, self.inners);
        let first = if part.block == BlockId::ROOT { program.root().ops.len() } else { 0 };
        let mut metas: Vec<(Var, Meta)> = vec![];
        for (i, op) in part.ops.iter().enumerate() {
            for inner in op.attrs.blocks().filter_map(|id| inners.iter().find(|inner| inner.block == id)) {
                self.inner(inner, &BlockDeclarations { vars: &new, around })?;
            }
            let elsewhere =
                |var: Var| around.and_then(|a| a.get(var)).or_else(|| program.lookup(part.block, var));
            let of = |var: Var| match new.get(&var).or_else(|| elsewhere(var)) {
                Some(desc) => Ok(desc.meta()),
                None => Err(Error::internal(format!("`{}` is read before it is written", program.name(var)))),
            };
            let info = self.ops.get(op.ty)?;
            let at = |e: Error| e.at_op(|| program.describe_op(part.block, first + i, op));
            let declared = |var: Var| new.get(&var).or_else(|| elsewhere(var));
            match self.shapes.find(info, op, declared) {
                Some(inferred) => {
                    let var = |position: usize| op.outputs.args().nth(position);
                    metas.extend(inferred.iter().filter_map(|(at, meta)| Some((var(*at)?, meta.clone()))));
                }
                None => {
                    info.infer(op, &of, &mut |var, meta| metas.push((var, meta))).map_err(at)?;
                    self.shapes.insert(info, op, declared, &metas);
                }
            }
            if info.is_control() {
                // Its outputs are gradients.
                metas.extend(op.writes().map(|var| (var, Meta::new(DType::F32, []))));
            }
            for (var, meta) in metas.drain(..) {
                let gradient_of = part.names.base(var);
                let own = gradient_of.is_some_and(|base| is_own(program, part.block, base));
                if let Some(known) = new.get(&var).or_else(|| elsewhere(var).filter(|_| !own)) {
                    let whole = meta.rows.is_none();
                    let kind = if whole { VarKind::SelectedRows } else { VarKind::Tensor };
                    if known.kind == kind && gradient_of.is_some() {
                        return Err(at(mixed_sparsity(program, var)));
                    }
                    continue;
                }
                let own = VarDesc::of(meta);
                let desc = match gradient_of.and_then(|base| program.lookup(part.block, base)) {
                    // The operator decides whether it is dense.
                    Some(VarDesc { kind: VarKind::Tensor | VarKind::SelectedRows, dtype, dims, .. }) => {
                        VarDesc { dtype: *dtype, dims: dims.clone(), ..own }
                    }
                    Some(base) => VarDesc { kind: base.kind, ..VarDesc::new(base.dtype, base.dims.clone()) },
                    None => own,
                };
                new.insert(var, VarDesc { gradient_of, ..desc });
            }
        }
        Ok(new)
    }
}
