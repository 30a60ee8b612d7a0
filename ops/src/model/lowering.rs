//! Operators that another system does not know, written in terms of those that it knows.

use autobwd::{BlockId, OpDesc, OpInfoMap, Program, Result};

use super::infer_shapes;

/// Compositions within compositions: no operator needs more.
const DEPTH: usize = 8;

/// The program with compositions in place of operators that are not known; `is_known` gets the program, the block and the
/// operator. Operators without a composition stay as they are.
///
/// # Errors
/// Those of `is_known` and of compositions.
pub fn lower(
    program: &Program,
    ops: &OpInfoMap,
    is_known: impl Fn(&Program, BlockId, &OpDesc) -> Result<bool>,
) -> Result<Program> {
    let mut lowered = program.clone();
    let mut changed = false;
    for _ in 0..DEPTH {
        let mut replaced = false;
        for block in (0..lowered.blocks().len()).map(BlockId::new) {
            replaced |= lower_block(&mut lowered, block, ops, &is_known)?;
        }
        if !replaced {
            break;
        }
        changed = true;
        infer_shapes(&mut lowered, ops);
    }
    if changed {
        ops.verify(&lowered)?;
    }
    Ok(lowered)
}

/// Replaces operators of a block; returns whether there were any.
fn lower_block(
    program: &mut Program,
    id: BlockId,
    ops: &OpInfoMap,
    is_known: impl Fn(&Program, BlockId, &OpDesc) -> Result<bool>,
) -> Result<bool> {
    let (mut replaced, mut after) = (false, vec![]);
    for op in program.block(id).map_or(vec![], |block| block.ops.clone()) {
        let parts = if is_known(program, id, &op)? { None } else { ops.composition_in(program, id, &op)? };
        replaced |= parts.is_some();
        after.extend(parts.unwrap_or_else(|| vec![op]));
    }
    if !replaced {
        return Ok(false);
    }
    if let Some(block) = program.block_mut(id) {
        block.ops = after;
    }
    Ok(true)
}
