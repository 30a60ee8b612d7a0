//! Sets that keep the values between segments of the program and recompute all others (Chen et al., 2016, "Training deep
//! nets with sublinear memory cost").
//!
//! In a program with many cut points, dynamic programming drops the choices that need the least memory. A boundary of
//! segments lies where few bytes are read across it.

use super::{RecomputeSet, cost_model::CostModel};

/// Number of equal parts of the program; values of the first ones are recomputed, and later ones kept whole.
const PARTS: usize = 8;

/// The sets whose estimated arena is below this one: of growing numbers of segments, and of parts of the program in the
/// segments that need the least memory.
pub(super) fn sets(model: &CostModel, arena_bytes: usize) -> Vec<RecomputeSet> {
    let (crossing, count) = (crossing_bytes(model), model.costs.len());
    let numbers = std::iter::successors(Some(2_usize), |number| Some(number + number.div_ceil(2)));
    let numbers = numbers.take_while(|number| 4 * number <= model.candidates.len());
    let mut found: Vec<(RecomputeSet, usize)> = vec![];
    let mut best: Option<(usize, Vec<usize>)> = None;
    for number in numbers {
        let boundaries = boundaries(&crossing, number);
        let (set, arena) = model.estimated_set(recomputed(model, &boundaries, count));
        if best.as_ref().is_none_or(|(least, _)| arena < *least) {
            best = Some((arena, boundaries));
        }
        found.push((set, arena));
    }
    let (_, boundaries) = best.unwrap_or_default();
    let ends = (1..PARTS).filter_map(|part| boundaries.get(boundaries.len() * part / PARTS));
    found.extend(ends.map(|end| model.estimated_set(recomputed(model, &boundaries, *end))));
    found.into_iter().filter(|(_, arena)| *arena < arena_bytes).map(|(set, _)| set).collect()
}

/// By operator: bytes of recomputable values that it or earlier operators write, and later ones read if recomputed.
fn crossing_bytes(model: &CostModel) -> Vec<usize> {
    let mut change = vec![0_isize; model.costs.len() + 1];
    for value in &model.values {
        let (Some(writer), Some(last)) = (value.writer, value.readers.iter().max()) else { continue };
        change[writer] += value.bytes as isize;
        change[writer.max(*last)] -= value.bytes as isize;
    }
    let bytes = change.iter().scan(0, |sum: &mut isize, change| {
        *sum += change;
        Some(*sum as usize)
    });
    bytes.take(model.costs.len()).collect()
}

/// The last operators of the segments but the final one: each where the fewest bytes cross, near to an equal part.
fn boundaries(crossing: &[usize], count: usize) -> Vec<usize> {
    let at = |halves: usize| halves * crossing.len() / (2 * count);
    let nearest = |k: usize| (at(2 * k - 1)..at(2 * k + 1)).min_by_key(|op| crossing[*op]);
    (1..count).filter_map(nearest).collect()
}

/// By operator: whether it is recomputed if the values that cross boundaries are kept, and all after this operator.
fn recomputed(model: &CostModel, boundaries: &[usize], end: usize) -> Vec<bool> {
    let mut kept = vec![false; model.costs.len()];
    kept.iter_mut().skip(end).for_each(|kept| *kept = true);
    for value in &model.values {
        let (Some(writer), Some(last)) = (value.writer, value.readers.iter().max()) else { continue };
        let next = boundaries.partition_point(|boundary| *boundary < writer);
        kept[writer] |= boundaries.get(next).is_some_and(|boundary| boundary < last);
    }
    let mut again = vec![false; model.costs.len()];
    for op in model.candidates.iter().rev() {
        again[*op] = !kept[*op] && model.is_needed(*op, &again);
    }
    again
}
