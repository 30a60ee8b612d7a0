//! The rows as a tree: rows of sub-blocks below the operator that runs them, and headings of modules, of repeated stretches
//! and of updates, which fold.

use std::hash::Hash;

use rustc_hash::FxHashMap;
use serde::Serialize;

use autobwd_core::Program;

use crate::{
    layout::{PageRow, home},
    repeats::{Repeat, repeats},
    tables::Tables,
};

/// A line that may have others below it.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum TreeRow {
    /// Operators: one on the left, and those on the right.
    Row {
        #[serde(rename = "o", skip_serializing_if = "Option::is_none")]
        left: Option<usize>,
        #[serde(rename = "r", skip_serializing_if = "Vec::is_empty")]
        right: Vec<usize>,
        #[serde(rename = "c", skip_serializing_if = "Vec::is_empty")]
        below: Vec<TreeRow>,
    },
    /// A heading.
    Heading {
        #[serde(rename = "h")]
        text: String,
        /// Whether it is folded at first.
        #[serde(rename = "f", skip_serializing_if = "is_false")]
        folded: bool,
        #[serde(rename = "c")]
        below: Vec<TreeRow>,
    },
}

fn is_false(value: &bool) -> bool {
    !*value
}

/// Repetitions of a single operator are folded at first if they are more than that.
const MANY: usize = 8;

/// The tree of a program with these rows by block. The structure of the program must be valid.
pub(crate) fn tree(program: &Program, rows: &[Vec<PageRow>], tables: &Tables) -> Vec<TreeRow> {
    let mut is_run = vec![false; rows.len()];
    is_run[0] = true;
    for op in &tables.ops {
        op.blocks.iter().for_each(|inner| is_run[*inner] = true);
    }
    let tree = Tree { program, rows, tables };
    let mut nodes = tree.block(0).0;
    for b in (0..rows.len()).filter(|b| !(rows[*b].is_empty() || is_run[*b] && tree.is_own(*b))) {
        let text = format!("Block {b}, which no operator runs");
        nodes.push(TreeRow::Heading { text, folded: false, below: tree.block(b).0 });
    }
    nodes
}

struct Tree<'a> {
    program: &'a Program,
    rows: &'a [Vec<PageRow>],
    tables: &'a Tables,
}

impl Tree<'_> {
    /// Whether the block has rows of its own, not the rows of its forward block.
    fn is_own(&self, block: usize) -> bool {
        block >= self.program.blocks().len() || home(self.program, block) == block
    }

    /// The nodes of a block, and a text that is equal for equal blocks.
    fn block(&self, block: usize) -> (Vec<TreeRow>, String) {
        let (mut nodes, mut signatures): (Vec<TreeRow>, Vec<String>) = (vec![], vec![]);
        for row in &self.rows[block] {
            let (node, signature) = self.row(row);
            nodes.push(node);
            signatures.push(signature);
        }
        let whole = signatures.join(";");
        let updates: Vec<bool> = self.rows[block]
            .iter()
            .map(|row| row.left.is_some_and(|op| self.tables.ops[op].is_update()))
            .collect();
        let (mut found, mut at) = (vec![], 0);
        let mut nodes = nodes.into_iter();
        for run in updates.chunk_by(|a, b| a == b) {
            let own: Vec<TreeRow> = nodes.by_ref().take(run.len()).collect();
            let below = self.with_repeats(
                own,
                &self.rows[block][at..at + run.len()],
                &signatures[at..at + run.len()],
            );
            match run[0] && block == 0 {
                true => found.push(TreeRow::Heading {
                    text: format!("Updates: {} operators", run.len()),
                    folded: false,
                    below,
                }),
                false => found.extend(below),
            }
            at += run.len();
        }
        (found, whole)
    }

    fn row(&self, row: &PageRow) -> (TreeRow, String) {
        let (mut below, mut signature) = (vec![], String::new());
        if let Some(op) = row.left {
            signature += &self.tables.signature(self.program, op);
        }
        let mut inner: Vec<usize> =
            row.left.iter().flat_map(|op| &self.tables.ops[*op].blocks).copied().collect();
        let right = row.right.iter().flat_map(|op| &self.tables.ops[*op].blocks).copied();
        inner.extend(right);
        inner.retain(|block| self.is_own(*block) && !self.rows[*block].is_empty());
        for block in &inner {
            let (nodes, text) = self.block(*block);
            signature += &format!("({text})");
            match inner.len() {
                1 => below.extend(nodes),
                _ => below.push(TreeRow::Heading {
                    text: format!("Block {block}"),
                    folded: false,
                    below: nodes,
                }),
            }
        }
        (TreeRow::Row { left: row.left, right: row.right.clone(), below }, signature)
    }

    /// Repeated stretches: of equal operators from the same source lines, as a loop over layers adds them, or else of
    /// equal operators.
    fn stretches(&self, rows: &[PageRow], signatures: &[String]) -> Vec<Repeat> {
        let site = |row: &PageRow| row.left.map(|op| self.tables.ops[op].site);
        match repeats(&numbered(rows.iter().map(site).zip(signatures))) {
            found if found.is_empty() => repeats(&numbered(signatures)),
            found => found,
        }
    }

    /// The path of the module of each row; empty if it is in none.
    fn modules(&self, rows: &[PageRow]) -> Vec<Vec<&str>> {
        let module = |row: &PageRow| self.tables.ops[row.left?].module.as_deref();
        rows.iter().map(|row| module(row).map_or(vec![], |path| path.split('/').collect())).collect()
    }

    /// Puts the operators of a module below a heading, or else repeated stretches.
    fn with_repeats(&self, nodes: Vec<TreeRow>, rows: &[PageRow], signatures: &[String]) -> Vec<TreeRow> {
        let modules = self.modules(rows);
        if modules.iter().any(|path| !path.is_empty()) {
            return by_module(nodes, &modules, 0);
        }
        let (mut found, mut at) = (vec![], 0);
        let mut nodes = nodes.into_iter();
        for repeat in self.stretches(rows, signatures) {
            found.extend(nodes.by_ref().take(repeat.start - at));
            at = repeat.start + repeat.period * repeat.count;
            let (period, count) = (repeat.period, repeat.count);
            let name = rows[repeat.start].left.map_or("backward operators", |op| self.tables.type_name(op));
            if period == 1 {
                let below = nodes.by_ref().take(count).collect();
                found.push(TreeRow::Heading {
                    text: format!("{count} × {name}"),
                    folded: count > MANY,
                    below,
                });
                continue;
            }
            let stretch = |i: usize| {
                let below = nodes.by_ref().take(period).collect();
                TreeRow::Heading { text: format!("{} of {count}", i + 1), folded: i > 0, below }
            };
            let below = (0..count).map(stretch).collect();
            let text = format!("{count} × {period} operators, from {name}");
            found.push(TreeRow::Heading { text, folded: false, below });
        }
        found.extend(nodes);
        found
    }
}

/// Puts the operators of modules below headings. The modules start alike, with a path of this length.
fn by_module(nodes: Vec<TreeRow>, modules: &[Vec<&str>], length: usize) -> Vec<TreeRow> {
    let (mut found, mut nodes, mut folded) = (vec![], nodes.into_iter(), false);
    for run in modules.chunk_by(|a, b| a.get(length) == b.get(length)) {
        let below = nodes.by_ref().take(run.len()).collect();
        let first = &run[0];
        if run.len() == 1 || first.len() == length {
            found.extend::<Vec<TreeRow>>(below);
            continue;
        }
        let equal = |path: &Vec<&str>| first.iter().zip(path).take_while(|(a, b)| a == b).count();
        let common = run.iter().map(equal).min().unwrap_or(length);
        let below = by_module(below, run, common);
        found.push(TreeRow::Heading { text: first[length..common].join("/"), folded, below });
        folded = true;
    }
    found
}

/// Items as numbers, equal for equal items.
fn numbered<T: Hash + Eq>(items: impl IntoIterator<Item = T>) -> Vec<usize> {
    let mut known = FxHashMap::default();
    let number = |item| {
        let next = known.len();
        *known.entry(item).or_insert(next)
    };
    items.into_iter().map(number).collect()
}
