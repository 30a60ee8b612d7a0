//! Operators that another system does not know, written in terms of those that it knows.

use autobwd::{BlockId, DType, Dims, OpDesc, OpInfoMap, Program, Result, VarDesc, program::Var};

use super::infer_shapes;

/// Compositions within compositions: no operator needs more.
const DEPTH: usize = 8;

/// The program with compositions in place of operators that are not known. Operators without a composition stay as they
/// are, and so do operators outside of the root block.
///
/// # Errors
/// Those of `is_known` and of compositions.
pub fn lower(
    program: &Program,
    ops: &OpInfoMap,
    is_known: impl Fn(&OpDesc) -> Result<bool>,
) -> Result<Program> {
    let mut lowered = program.clone();
    let mut changed = false;
    for _ in 0..DEPTH {
        let (mut replaced, mut after) = (false, vec![]);
        for op in lowered.root().ops.clone() {
            let parts = if is_known(&op)? { None } else { ops.composition(&mut lowered, &op)? };
            replaced |= parts.is_some();
            after.extend(parts.unwrap_or_else(|| vec![op]));
        }
        if !replaced {
            break;
        }
        changed = true;
        let new: Vec<Var> = after.iter().flat_map(OpDesc::writes).collect();
        if let Some(root) = lowered.block_mut(BlockId::ROOT) {
            root.ops = after;
            for var in new {
                if !root.vars.contains_key(&var) {
                    // Shape rules set dtype and shape.
                    root.vars.insert(var, VarDesc::new(DType::F32, Dims::default()));
                }
            }
        }
        infer_shapes(&mut lowered, ops);
    }
    if changed {
        ops.verify(&lowered)?;
    }
    Ok(lowered)
}
