//! Dtypes and shapes of the variables that the backward part adds.

use super::names::GradNames;
use crate::{BlockId, Error, Meta, OpDesc, OpInfoMap, Program, Result, Var, VarDesc, VarKind, Vars};

/// Runs the shape rules of the operators to be appended, and returns the variables that they add: a gradient has dtype and
/// shape of its variable, anything else what its operator says. `new` has those of copies already.
///
/// # Errors
/// Those of the shape rules: a gradient rule whose operators do not fit each other.
pub(super) fn declare(
    ops: &OpInfoMap,
    program: &Program,
    names: &GradNames,
    mut new: Vars,
    appended: &[OpDesc],
) -> Result<Vars> {
    let mut metas: Vec<(Var, Meta)> = vec![];
    for (i, op) in appended.iter().enumerate() {
        let at = |e: Error| e.at_op(|| program.describe_op(BlockId::ROOT, program.root().ops.len() + i, op));
        let of = |var: Var| match new.get(&var).or_else(|| program.lookup(BlockId::ROOT, var)) {
            Some(desc) => Ok(desc.meta()),
            None => Err(Error::internal(format!("`{}` is read before it is written", program.name(var)))),
        };
        ops.get(&op.ty)
            .and_then(|info| info.infer(op, &of, &mut |var, meta| metas.push((var, meta))))
            .map_err(at)?;
        for (var, meta) in metas.drain(..) {
            if new.contains_key(&var) || program.root().vars.contains_key(&var) {
                continue;
            }
            let gradient_of = names.base(var);
            let own = VarDesc::of(meta);
            let desc = match gradient_of.and_then(|base| program.lookup(BlockId::ROOT, base)) {
                // Whether it is a whole tensor, its operator says.
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
