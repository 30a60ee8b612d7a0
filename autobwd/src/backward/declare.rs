//! Dtypes and shapes of the variables that the backward part adds.

use rustc_hash::FxHashMap;

use super::names::GradNames;
use crate::{BlockId, Error, Meta, OpDesc, OpInfoMap, Program, Result, Var, VarDesc};

/// The operators with the variables that they add.
pub(super) struct Declared {
    pub(super) ops: Vec<OpDesc>,
    pub(super) vars: Vec<(Var, VarDesc)>,
}

/// Runs the shape rules: a gradient has dtype and shape of its variable, anything else what its operator says, apart from
/// those `vars` that are known.
///
/// # Errors
/// Those of the shape rules: a gradient rule whose operators do not fit each other.
pub(super) fn declare(
    ops: &OpInfoMap,
    program: &Program,
    names: &GradNames,
    emitted: Vec<OpDesc>,
    mut vars: Vec<(Var, VarDesc)>,
) -> Result<Declared> {
    let mut known: FxHashMap<Var, usize> = vars.iter().enumerate().map(|(i, (var, _))| (*var, i)).collect();
    let mut metas: Vec<(Var, Meta)> = vec![];
    for (i, op) in emitted.iter().enumerate() {
        let at = |e: Error| e.at_op(|| program.describe_op(BlockId::ROOT, program.root().ops.len() + i, op));
        let of = |var: Var| match (known.get(&var), program.lookup(BlockId::ROOT, var)) {
            (Some(own), _) => Ok(vars[*own].1.meta()),
            (None, Some(desc)) => Ok(desc.meta()),
            (None, None) => {
                Err(Error::internal(format!("`{}` is read before it is written", program.name(var))))
            }
        };
        ops.get(&op.ty)
            .and_then(|info| info.infer(op, &of, &mut |var, meta| metas.push((var, meta))))
            .map_err(at)?;
        for (var, meta) in metas.drain(..) {
            if known.contains_key(&var) || program.root().vars.contains_key(&var) {
                continue;
            }
            let base = names.base(var).and_then(|base| program.lookup(BlockId::ROOT, base));
            let desc = match base {
                Some(base) => VarDesc { kind: base.kind, ..VarDesc::new(base.dtype, base.dims.clone()) },
                None => VarDesc::new(meta.dtype, meta.dims),
            };
            known.insert(var, vars.len());
            vars.push((var, desc));
        }
    }
    Ok(Declared { ops: emitted, vars })
}
