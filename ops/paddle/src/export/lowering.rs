//! Operators that the reference does not know, written in terms of those that it knows.

use autobwd::{BlockId, OpDesc, OpInfoMap, Program, Result, VarDesc, program::Var};

use crate::{import::infer_shapes, obstacles::Obstacles, reference::reference};

/// Compositions within compositions: no operator needs more.
const DEPTH: usize = 8;

/// The program without operators that the reference does not know.
pub(super) fn lower(program: &Program, ops: &OpInfoMap, obstacles: &mut Obstacles) -> Result<Program> {
    let mut lowered = program.clone();
    let mut changed = false;
    for b in 0..program.blocks().len() {
        let id = BlockId::new(b);
        for _ in 0..DEPTH {
            let before = lowered.block(id).map_or(vec![], |block| block.ops.clone());
            let mut replaced = false;
            let mut after = vec![];
            for (i, op) in before.into_iter().enumerate() {
                let parts = match reference(&op.ty)? {
                    Some(_) => None,
                    None => composition(&mut lowered, ops, id, &op)?,
                };
                match parts {
                    Some(parts) => {
                        replaced = true;
                        after.extend(parts);
                    }
                    None => {
                        if reference(&op.ty)?.is_none() {
                            let text =
                                format!("operator `{}` is unknown there and has no composition", op.ty);
                            obstacles.add(format!("block {b}, operator {i}"), text);
                        }
                        after.push(op);
                    }
                }
            }
            if !replaced {
                break;
            }
            changed = true;
            let new: Vec<Var> = after.iter().flat_map(OpDesc::writes).collect();
            if let Some(block) = lowered.block_mut(id) {
                block.ops = after;
                for var in new {
                    if !block.vars.contains_key(&var) {
                        block.vars.insert(var, VarDesc::new(autobwd::DType::F32, autobwd::Dims::default()));
                    }
                }
            }
            infer_shapes(&mut lowered, ops);
        }
    }
    if changed {
        ops.verify(&lowered)?;
    }
    Ok(lowered)
}

/// The composition of an operator in the root block.
fn composition(
    program: &mut Program,
    ops: &OpInfoMap,
    block: BlockId,
    op: &OpDesc,
) -> Result<Option<Vec<OpDesc>>> {
    match block {
        BlockId::ROOT => ops.composition(program, op),
        _ => Ok(None),
    }
}
