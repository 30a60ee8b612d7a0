//! The column and row of every operator: forward operators and updates have rows of their own, a gradient operator
//! shares the row of its forward operator.
//!
//! The origin of an operator and the forward block of its block determine both.

use rustc_hash::FxHashMap;

use autobwd_core::{BlockId, OpDesc, Origin, Program, Var};

/// An operator of a program: block and index.
pub(crate) type At = (usize, usize);

/// The part of a training step that an operator belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StepPart {
    Forward,
    Backward,
    Update,
}

/// The place of an operator.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpPlacement {
    pub(crate) part: StepPart,
    /// Whether it stands in the right column.
    pub(crate) right: bool,
    /// The operator of the left column whose row it shares; `None` for the right column of a row of its own.
    pub(crate) row: Option<At>,
}

/// The places of all operators, by block and index. The program's structure must be valid.
pub(crate) fn places(program: &Program) -> Vec<Vec<OpPlacement>> {
    let parts = parts(program);
    let right = |(b, i): At| {
        let block = &program.blocks()[b];
        block.forward.is_some() || block.ops[i].origin != Origin::Model
    };
    let limit = parts.iter().map(Vec::len).sum::<usize>() + 1;
    let mut rows: Vec<Vec<Option<At>>> = vec![];
    for (b, block) in program.blocks().iter().enumerate() {
        let row = |i| {
            let mut at = (b, i);
            // A forged program may have cycles of origins.
            for _ in 0..limit {
                if !right(at) {
                    return Some(at);
                }
                at = forward_of(program, at)?;
            }
            None
        };
        let mut found: Vec<Option<At>> = (0..block.ops.len()).map(row).collect();
        join_neighbours(&block.ops, &mut found, &|i| right((b, i)));
        rows.push(found);
    }
    let place = |b: usize, i: usize| OpPlacement { part: parts[b][i], right: right((b, i)), row: rows[b][i] };
    (0..parts.len()).map(|b| (0..parts[b].len()).map(|i| place(b, i)).collect()).collect()
}

/// The block in whose rows the operators of a block stand: for a gradient block, its forward block.
pub(crate) fn home(program: &Program, block: usize) -> usize {
    let mut at = block;
    for _ in program.blocks() {
        match program.blocks()[at].forward {
            Some(forward) => at = forward.index(),
            None => return at,
        }
    }
    block
}

fn parts(program: &Program) -> Vec<Vec<StepPart>> {
    let blocks = program.blocks();
    // Operators run blocks after their own.
    let mut inherited = vec![StepPart::Forward; blocks.len()];
    let mut parts = vec![];
    for (b, block) in blocks.iter().enumerate() {
        let seed = block.ops.iter().position(|op| op.origin == Origin::Seed).unwrap_or(usize::MAX);
        let mut differentiated = vec![false; block.ops.len()];
        for op in &block.ops {
            if let Origin::Gradient { of } = op.origin
                && let Some(op) = differentiated.get_mut(of)
            {
                *op = true;
            }
        }
        let part = |(i, op): (usize, &OpDesc)| match op.origin {
            _ if inherited[b] != StepPart::Forward => inherited[b],
            Origin::Model if block.forward.is_some() => StepPart::Backward,
            Origin::Model if i > seed && !differentiated[i] => StepPart::Update,
            Origin::Model => StepPart::Forward,
            _ => StepPart::Backward,
        };
        let own: Vec<StepPart> = block.ops.iter().enumerate().map(part).collect();
        for (op, part) in block.ops.iter().zip(&own) {
            op.attrs.blocks().for_each(|inner| inherited[inner.index()] = *part);
        }
        parts.push(own);
    }
    parts
}

/// The operator that an operator differentiates or recomputes; for a seed, the one that computes the loss.
fn forward_of(program: &Program, (b, i): At) -> Option<At> {
    let blocks = program.blocks();
    let forward = blocks[b].forward.map_or(b, BlockId::index);
    let of = match blocks[b].ops[i].origin {
        Origin::Gradient { of } | Origin::Recompute { of } => of,
        Origin::Seed => {
            let seed = blocks[b].ops[i].writes().next()?;
            let target = program.lookup(BlockId::new(b), seed)?.gradient_of?;
            let before = if forward == b { i } else { blocks[forward].ops.len() };
            let writes = |op: &OpDesc| op.writes().any(|v| v == target);
            blocks[forward].ops[..before].iter().rposition(writes)?
        }
        _ => return None,
    };
    (of < blocks[forward].ops.len() && (forward, of) != (b, i)).then_some((forward, of))
}

/// Sums, zeros and copies get the row of the operator that they are for: a copy the row of the operator that overwrites
/// the value, all others the row of the next gradient operator.
fn join_neighbours(ops: &[OpDesc], rows: &mut [Option<At>], right: &dyn Fn(usize) -> bool) {
    let (mut next_gradient, mut next) = (None, None);
    let known = rows.to_vec();
    for (i, op) in ops.iter().enumerate().rev() {
        match known[i] {
            Some(row) if right(i) => (next_gradient, next) = (Some(row), Some(row)),
            Some(row) => next = Some(row),
            None if op.origin == Origin::Kept => rows[i] = next,
            None => rows[i] = next_gradient,
        }
    }
    let mut last = None;
    for (i, row) in rows.iter_mut().enumerate() {
        match row {
            Some(row) if right(i) => last = Some(*row),
            Some(_) => {}
            None => *row = last,
        }
    }
}

/// A line of the picture: an operator on the left, and those on the right from the last to the first to run, so that
/// both columns meet at the loss.
#[derive(Clone, Debug, Default)]
pub(crate) struct PageRow {
    pub(crate) left: Option<usize>,
    pub(crate) right: Vec<usize>,
}

/// The rows of every block, in program order. `number` gives the number of an operator.
pub(crate) fn rows(
    program: &Program,
    places: &[Vec<OpPlacement>],
    number: impl Fn(At) -> usize,
) -> Vec<Vec<PageRow>> {
    let mut rows: Vec<Vec<PageRow>> = vec![vec![]; places.len()];
    let mut row_of: FxHashMap<At, At> = FxHashMap::default();
    for (b, places) in places.iter().enumerate() {
        for (i, _) in places.iter().enumerate().filter(|(_, place)| !place.right) {
            row_of.insert((b, i), (b, rows[b].len()));
            rows[b].push(PageRow { left: Some(number((b, i))), right: vec![] });
        }
    }
    for (b, places) in places.iter().enumerate() {
        for (i, place) in places.iter().enumerate().filter(|(_, place)| place.right) {
            match place.row.and_then(|at| row_of.get(&at)) {
                Some((block, row)) => rows[*block][*row].right.push(number((b, i))),
                None => rows[home(program, b)].push(PageRow { left: None, right: vec![number((b, i))] }),
            }
        }
    }
    rows.iter_mut().flatten().for_each(|row| row.right.reverse());
    rows
}

/// The variables that a gradient operator may be asked about: those it writes.
pub(crate) fn gradients(program: &Program) -> Vec<Var> {
    let ops = program.blocks().iter().flat_map(|block| &block.ops);
    let mut seen = vec![false; program.name_count()];
    let written = ops.filter(|op| op.origin != Origin::Model).flat_map(OpDesc::writes);
    written.filter(|v| !std::mem::replace(&mut seen[v.index()], true)).collect()
}
