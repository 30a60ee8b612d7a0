//! Operators of a program by their places: descriptions, source lines, and what they are computed from.

use std::collections::HashSet;

use autobwd_core::{BlockId, OpDesc, Origin, Program, Var};

use crate::operator_trace::CallPlace;

/// The operator at a place of a program.
pub(crate) fn op_at(program: &Program, block: usize, index: usize) -> Option<&OpDesc> {
    program.block(BlockId::new(block))?.ops.get(index)
}

/// Type, place, source line and slots of an operator.
pub(crate) fn described(program: &Program, block: usize, index: usize) -> String {
    let describe = |op| program.describe_op(BlockId::new(block), index, op).to_string();
    op_at(program, block, index).map_or_else(String::new, describe)
}

/// The source line that added an operator.
pub(crate) fn source_line(program: &Program, place: CallPlace) -> Option<String> {
    Some(op_at(program, place.block, place.index)?.site.as_ref()?.to_string())
}

/// The forward operator of an operator of a gradient.
pub(crate) fn forward_operator(program: &Program, place: CallPlace) -> Option<String> {
    let Origin::Gradient { of } = op_at(program, place.block, place.index)?.origin else { return None };
    let forward = program.block(BlockId::new(place.block))?.forward;
    Some(described(program, forward.map_or(place.block, BlockId::index), of))
}

/// The variables that an operator and the operators before it read to compute its outputs.
pub(crate) fn upstream(program: &Program, place: CallPlace) -> HashSet<Var> {
    let (mut block, mut index) = (place.block, place.index);
    let mut needed: HashSet<Var> = op_at(program, block, index).into_iter().flat_map(OpDesc::reads).collect();
    while let Some(own) = program.block(BlockId::new(block)) {
        for op in own.ops.iter().take(index).rev() {
            if op.writes().any(|var| needed.contains(&var)) {
                needed.extend(op.reads());
            }
        }
        // The operators before the one that runs the block.
        let Some(parent) = own.parent else { break };
        let runs = |op: &OpDesc| op.attrs.blocks().any(|own| own.index() == block);
        let position = program.block(parent).and_then(|outer| outer.ops.iter().position(runs));
        let Some(position) = position else { break };
        (block, index) = (parent.index(), position);
    }
    needed
}
