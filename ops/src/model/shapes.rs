//! Shapes of variables by the shape rules: versions of the reference declare them differently, or not at all.

use std::collections::HashSet;

use autobwd::{
    BlockId, Dims, Error, ErrorKind, Meta, OpInfoMap, Program, VarDesc,
    program::{Var, VarKind},
};

/// Declares the outputs of all operators as their shape rules infer them. Variables that the program keeps or that no
/// operator writes stay as declared, and so do those of an operator that a shape rule rejects: verification says why.
/// Dimensions that a loop changes stay unknown, and a variable that is read before it is written keeps its dimensions: the
/// rule of its reader has seen them.
pub fn infer_shapes(program: &mut Program, ops: &OpInfoMap) {
    let carried = carried(program, ops);
    for b in 0..program.blocks().len() {
        let id = BlockId::new(b);
        let (mut inferred, mut read): (HashSet<Var>, HashSet<Var>) = Default::default();
        for i in 0..program.blocks()[b].ops.len() {
            let op = &program.blocks()[b].ops[i];
            read.extend(op.reads());
            let Ok(info) = ops.get(&op.ty) else { continue };
            if info.is_control() {
                continue;
            }
            let of = |var: Var| {
                let unknown = || Error::new(ErrorKind::UnknownVar, "not declared");
                program.lookup(id, var).map(VarDesc::meta).ok_or_else(unknown)
            };
            let mut outputs: Vec<(Var, Meta)> = vec![];
            if info
                .check(op)
                .and_then(|()| info.infer(op, &of, &mut |var, meta| outputs.push((var, meta))))
                .is_err()
            {
                continue;
            }
            let Some(block) = program.block_mut(id) else { continue };
            for (var, meta) in outputs {
                if let Some(desc) = block.vars.get_mut(&var).filter(|desc| !desc.persistable) {
                    let again = !inferred.insert(var);
                    let kept = carried.contains(&var) || !again && read.contains(&var);
                    let dims = kept.then(|| desc.dims.clone()).filter(|dims| dims.agrees(&meta.dims));
                    declare(desc, meta, again);
                    if let Some(dims) = dims {
                        desc.dims = dims;
                    }
                }
            }
        }
    }
}

/// Variables that control flow may write, perhaps in other dimensions: its outputs, and those of outer blocks.
fn carried(program: &Program, ops: &OpInfoMap) -> HashSet<Var> {
    let mut carried = HashSet::new();
    for block in program.blocks() {
        for op in &block.ops {
            let is_control = ops.get(&op.ty).is_ok_and(|info| info.is_control());
            carried.extend(op.writes().filter(|var| is_control || !block.vars.contains_key(var)));
        }
    }
    carried
}

/// Declares a variable as inferred; where it is written `again`, dimensions that differ are unknown.
fn declare(desc: &mut VarDesc, meta: Meta, again: bool) {
    let known = std::mem::take(&mut desc.dims);
    desc.dims = if again && known.len() == meta.dims.len() {
        known
            .iter()
            .zip(meta.dims.iter())
            .map(|(a, b)| if a == b { *a } else { autobwd::tensor::Dim::UNKNOWN })
            .collect()
    } else if known.agrees(&meta.dims) {
        meta.dims
            .iter()
            .zip(known.iter())
            .map(|(inferred, declared)| inferred.or(*declared))
            .collect::<Dims>()
    } else {
        meta.dims.clone()
    };
    desc.dtype = meta.dtype;
    desc.kind = match (meta.array, meta.rows) {
        (true, _) if desc.kind == VarKind::StepScopes => VarKind::StepScopes,
        (true, _) => VarKind::TensorArray,
        (false, Some(_)) => VarKind::SelectedRows,
        (false, None) => VarKind::Tensor,
    };
}

#[cfg(test)]
mod tests {
    use autobwd::{Builder, DType, OpInfoMap, Result};

    use super::infer_shapes;
    use crate::Math;

    #[test]
    fn variables_read_before_they_are_written_keep_their_dimensions() -> Result<()> {
        let net = Builder::new();
        let y = net.input("x", DType::F32, &[-1, -1, 2, 3]).transpose(&[0, 2, 1, 3]).name();
        let mut program = net.program()?.clone();
        let y = program.expect_var(&y)?;
        program.root_mut().ops[0].inputs.set("X", vec![y]);
        infer_shapes(&mut program, OpInfoMap::linked()?);
        let once = program.clone();
        infer_shapes(&mut program, OpInfoMap::linked()?);
        assert_eq!(program, once);
        Ok(())
    }
}
