//! Differences from an older program: operators are matched by the variable that they write, as `diff` does.

use rustc_hash::FxHashMap;
use std::collections::VecDeque;

use autobwd_core::{Block, BlockId, OpDesc, Program};

use crate::{
    layout::{At, PageRow},
    texts::type_text,
};

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
    spots: FxHashMap<usize, OpPosition>,
    /// Block, position before which it goes, and the row.
    inserted: Vec<(usize, usize, PageRow)>,
}

impl Insertion<'_> {
    pub(crate) fn of(rows: &mut Vec<Vec<PageRow>>) -> Insertion<'_> {
        let mut spots = FxHashMap::default();
        for (b, rows) in rows.iter().enumerate() {
            for (i, row) in rows.iter().enumerate() {
                spots.extend(row.left.iter().chain(&row.right).map(|op| (*op, OpPosition::Row(b, i))));
            }
        }
        Insertion { rows, spots, inserted: vec![] }
    }

    /// Puts an operator into the row of `beside`, else into a new row behind that of `before`, else first in its block.
    pub(crate) fn add(
        &mut self,
        block: usize,
        op: usize,
        right: bool,
        beside: Option<&usize>,
        before: Option<&usize>,
    ) {
        let spot = |op: Option<&usize>| self.spots.get(op?).copied();
        if let Some(spot) = spot(beside) {
            let row = match spot {
                OpPosition::Row(b, i) => &mut self.rows[b][i],
                OpPosition::Inserted(k) => &mut self.inserted[k].2,
            };
            row.right.insert(0, op);
            self.spots.insert(op, spot);
            return;
        }
        let (block, at) = match spot(before) {
            Some(OpPosition::Row(b, i)) => (b, i + 1),
            Some(OpPosition::Inserted(k)) => (self.inserted[k].0, self.inserted[k].1),
            None => (block, 0),
        };
        let row = match right {
            true => PageRow { left: None, right: vec![op] },
            false => PageRow { left: Some(op), right: vec![] },
        };
        self.spots.insert(op, OpPosition::Inserted(self.inserted.len()));
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
