//! Differences from an older program, by the matching that `diff` uses, and the rows of operators that are gone.

use rustc_hash::{FxHashMap, FxHashSet};

use autobwd_core::{
    BlockId, Program,
    desc::{OpMatching, match_ops},
};

use crate::{
    layout::{At, PageRow},
    texts::type_text,
};

/// The differences of the new program's operators from those they match.
pub(crate) struct Comparison {
    /// By block of either program.
    pub(crate) matchings: Vec<OpMatching>,
    /// Operators of the new program that are not in the old one.
    pub(crate) added: Vec<At>,
    /// Operators of the new program that were different, with their old text.
    pub(crate) changed: Vec<(At, String)>,
    /// Other operators of the new program that stood in another order, with their old index.
    pub(crate) moved: Vec<(At, usize)>,
}

pub(crate) fn compare(old: &Program, new: &Program) -> Comparison {
    let matchings = match_ops(old, new);
    let (mut added, mut changed, mut moved) = (vec![], vec![], vec![]);
    for (b, matching) in matchings.iter().enumerate() {
        let in_order: FxHashSet<usize> = matching.in_order.iter().map(|(_, j)| *j).collect();
        let text = |program, i| text(program, BlockId::new(b), i);
        for (j, before) in matching.to_old.iter().enumerate() {
            match before.map(|i| (i, text(old, i))) {
                None => added.push((b, j)),
                Some((_, was)) if was != text(new, j) => changed.push(((b, j), was)),
                Some((i, _)) if !in_order.contains(&j) => moved.push(((b, j), i)),
                Some(_) => {}
            }
        }
    }
    Comparison { matchings, added, changed, moved }
}

/// An operator, and the types of its outputs.
fn text(program: &Program, id: BlockId, index: usize) -> String {
    let Some(op) = program.block(id).and_then(|block| block.ops.get(index)) else { return String::new() };
    let types = op.writes().filter_map(|v| program.lookup(id, v)).map(type_text);
    format!("{}: {}", program.op_text(op), types.collect::<Vec<_>>().join(", "))
}

/// Where an operator stands: in a row of the new program, or in an inserted one.
#[derive(Clone, Copy)]
enum OpPosition {
    Row(usize, usize),
    Inserted(usize),
}

/// Operators of the older program that are put into the rows of the new one.
pub(crate) struct Insertion<'a> {
    rows: &'a mut Vec<Vec<PageRow>>,
    /// By number of the operator.
    positions: FxHashMap<usize, OpPosition>,
    /// Block, position before which it goes, and the row.
    inserted: Vec<(usize, usize, PageRow)>,
}

impl Insertion<'_> {
    pub(crate) fn of(rows: &mut Vec<Vec<PageRow>>) -> Insertion<'_> {
        let mut positions = FxHashMap::default();
        for (b, rows) in rows.iter().enumerate() {
            for (i, row) in rows.iter().enumerate() {
                positions.extend(row.left.iter().chain(&row.right).map(|op| (*op, OpPosition::Row(b, i))));
            }
        }
        Insertion { rows, positions, inserted: vec![] }
    }

    /// Puts an operator into the row of `partner`, else into a new row after the row of `before`, else first in its
    /// block.
    pub(crate) fn add(
        &mut self,
        block: usize,
        op: usize,
        right: bool,
        partner: Option<&usize>,
        before: Option<&usize>,
    ) {
        let position = |op: Option<&usize>| self.positions.get(op?).copied();
        if let Some(position) = position(partner) {
            let row = match position {
                OpPosition::Row(b, i) => &mut self.rows[b][i],
                OpPosition::Inserted(k) => &mut self.inserted[k].2,
            };
            row.right.insert(0, op);
            self.positions.insert(op, position);
            return;
        }
        let (block, at) = match position(before) {
            Some(OpPosition::Row(b, i)) => (b, i + 1),
            Some(OpPosition::Inserted(k)) => (self.inserted[k].0, self.inserted[k].1),
            None => (block, 0),
        };
        let row = match right {
            true => PageRow { left: None, right: vec![op] },
            false => PageRow { left: Some(op), right: vec![] },
        };
        self.positions.insert(op, OpPosition::Inserted(self.inserted.len()));
        self.inserted.push((block, at, row));
    }

    /// Puts the new rows in.
    pub(crate) fn complete(mut self) {
        // Stable: rows for the same position keep the old program's order.
        self.inserted.sort_by_key(|(block, at, _)| (*block, *at));
        let mut inserted = self.inserted.into_iter().peekable();
        for (b, rows) in self.rows.iter_mut().enumerate() {
            let mut all = vec![];
            for (i, row) in std::mem::take(rows).into_iter().enumerate() {
                while let Some((_, _, new)) = inserted.next_if(|(block, at, _)| (*block, *at) <= (b, i)) {
                    all.push(new);
                }
                all.push(row);
            }
            while let Some((_, _, new)) = inserted.next_if(|(block, ..)| *block == b) {
                all.push(new);
            }
            *rows = all;
        }
    }
}
