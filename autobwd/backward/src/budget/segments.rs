//! Sets that keep the values between segments of the program and recompute all others (Chen et al., 2016, "Training deep
//! nets with sublinear memory cost").
//!
//! In a program with many cut points, dynamic programming drops the choices that need the least memory. A boundary of
//! segments lies where few bytes are read across it.

use super::{RecomputeSet, cost_model::CostModel};

/// Parts of the program up to which values are recomputed, with the number of segments that needs the least memory.
const PARTS: usize = 8;

/// The sets whose estimated arena is below this one: of growing numbers of segments, and with later segments kept whole.
pub(super) fn sets(model: &CostModel, arena_bytes: usize) -> Vec<RecomputeSet> {
    let (crossing, count) = (crossing_bytes(model), model.costs.len());
    let numbers = std::iter::successors(Some(2_usize), |number| Some(number + number.div_ceil(2)));
    let numbers = numbers.take_while(|number| 4 * number <= model.candidates.len());
    let whole: Vec<Vec<usize>> = numbers.map(|number| boundaries(&crossing, number)).collect();
    let arena = |again: &Vec<bool>| model.arena_bytes(again);
    let best = whole.iter().min_by_key(|boundaries| arena(&recomputed(model, boundaries, count)));
    let ends = |boundaries: &Vec<usize>| -> Vec<usize> {
        (1..PARTS).filter_map(|part| boundaries.get(boundaries.len() * part / PARTS).copied()).collect()
    };
    let partial = best
        .into_iter()
        .flat_map(|boundaries| ends(boundaries).into_iter().map(|end| recomputed(model, boundaries, end)));
    let all = whole.iter().map(|boundaries| recomputed(model, boundaries, count)).chain(partial);
    // A part of slack, as in `cut_points`.
    let set =
        |(arena, again): (usize, Vec<bool>)| RecomputeSet { least: arena - arena / 8, ..model.set(again) };
    all.map(|again| (arena(&again), again)).filter(|(arena, _)| *arena < arena_bytes).map(set).collect()
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
