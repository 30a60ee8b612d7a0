//! The matching of two programs' operators, by the variables they write. Operators that moved are those outside of a
//! longest increasing subsequence of the matches.

use std::{
    collections::{HashMap, VecDeque},
    iter,
};

use super::{Block, OpDesc, Program};

/// The matching of the operators of two blocks: the same operator, perhaps changed.
#[derive(Clone, Debug)]
pub struct OpMatching {
    /// By old index.
    pub to_new: Vec<Option<usize>>,
    /// By new index.
    pub to_old: Vec<Option<usize>>,
    /// Matched pairs that are in the same order in both blocks.
    pub in_order: Vec<(usize, usize)>,
}

/// Matches the operators of all blocks, by block; a program without a block has none there.
pub fn match_ops(old: &Program, new: &Program) -> Vec<OpMatching> {
    let none = Block::default();
    let blocks = 0..old.blocks().len().max(new.blocks().len());
    blocks
        .map(|i| {
            let (a, b) = (old.blocks().get(i).unwrap_or(&none), new.blocks().get(i).unwrap_or(&none));
            OpMatching::of((old, a), (new, b))
        })
        .collect()
}

impl OpMatching {
    /// Matches the n-th operators that write a variable; for operators that write nothing, the n-th of a type.
    fn of((old, a): (&Program, &Block), (new, b): (&Program, &Block)) -> OpMatching {
        fn key<'a>(program: &'a Program, op: &OpDesc) -> (&'a str, &'static str) {
            op.writes().next().map_or(("", op.ty.as_str()), |v| (program.name(v), ""))
        }
        let mut places: HashMap<_, VecDeque<usize>> = HashMap::new();
        for (i, op) in a.ops.iter().enumerate() {
            places.entry(key(old, op)).or_default().push_back(i);
        }
        let (mut to_new, mut to_old) = (vec![None; a.ops.len()], vec![None; b.ops.len()]);
        for (j, op) in b.ops.iter().enumerate() {
            if let Some(i) = places.get_mut(&key(new, op)).and_then(VecDeque::pop_front) {
                (to_new[i], to_old[j]) = (Some(j), Some(i));
            }
        }
        let pairs: Vec<(usize, usize)> =
            to_new.iter().enumerate().filter_map(|(i, j)| Some((i, (*j)?))).collect();
        let in_order = longest_rising(&pairs.iter().map(|(_, j)| *j).collect::<Vec<_>>());
        OpMatching { in_order: in_order.into_iter().map(|at| pairs[at]).collect(), to_new, to_old }
    }
}

/// Positions of a longest increasing subsequence of distinct numbers (Schensted, 1961).
fn longest_rising(numbers: &[usize]) -> Vec<usize> {
    // By length: the end of the subsequence of that length with the smallest last number.
    let mut ends: Vec<usize> = vec![];
    let mut before = vec![None; numbers.len()];
    for (at, number) in numbers.iter().enumerate() {
        let length = ends.partition_point(|end| numbers[*end] < *number);
        before[at] = length.checked_sub(1).map(|shorter| ends[shorter]);
        match ends.get_mut(length) {
            Some(end) => *end = at,
            None => ends.push(at),
        }
    }
    let mut found: Vec<usize> = iter::successors(ends.last().copied(), |at| before[*at]).collect();
    found.reverse();
    found
}
