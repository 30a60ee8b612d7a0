//! Differences from an older program: operators are matched by the variable that they write, as `diff` does.

use rustc_hash::FxHashMap;
use std::collections::VecDeque;

use autobwd_core::{Block, BlockId, OpDesc, Program};

use crate::{data::type_text, layout::At};

/// The matching of two programs.
pub(crate) struct Comparison {
    /// By block and index of the old program: the operator of the new one.
    pub(crate) to_new: Vec<Vec<Option<usize>>>,
    /// Operators of the new program that are not in the old one.
    pub(crate) added: Vec<At>,
    /// Operators of the new program that were different, with their old text.
    pub(crate) changed: Vec<(At, String)>,
}

/// Matches the n-th operators of a block that first write a variable; for operators that write nothing, the n-th of a
/// type.
pub(crate) fn compare(old: &Program, new: &Program) -> Comparison {
    let none = Block::default();
    let (mut to_new, mut added, mut changed) = (vec![], vec![], vec![]);
    for b in 0..old.blocks().len().max(new.blocks().len()) {
        let id = BlockId::new(b);
        let (before, after) = (old.block(id).unwrap_or(&none), new.block(id).unwrap_or(&none));
        let mut places: FxHashMap<_, VecDeque<usize>> = FxHashMap::default();
        for (i, op) in before.ops.iter().enumerate() {
            places.entry(key(old, op)).or_default().push_back(i);
        }
        let mut matched = vec![None; before.ops.len()];
        for (j, op) in after.ops.iter().enumerate() {
            let Some(i) = places.get_mut(&key(new, op)).and_then(VecDeque::pop_front) else {
                added.push((b, j));
                continue;
            };
            matched[i] = Some(j);
            let was = text(old, id, &before.ops[i]);
            if was != text(new, id, op) {
                changed.push(((b, j), was));
            }
        }
        to_new.push(matched);
    }
    Comparison { to_new, added, changed }
}

fn key<'a>(program: &'a Program, op: &OpDesc) -> (&'a str, &'static str) {
    op.writes().next().map_or(("", op.ty.as_str()), |v| (program.name(v), ""))
}

/// The operator, and the types of its outputs.
fn text(program: &Program, block: BlockId, op: &OpDesc) -> String {
    let types = op.writes().filter_map(|v| program.lookup(block, v)).map(type_text);
    format!("{}: {}", program.op_text(op), types.collect::<Vec<_>>().join(", "))
}
