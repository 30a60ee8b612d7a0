//! Sets of operators to recompute, one for each memory limit, by dynamic programming over cut points.
//!
//! Each state decides, in program order, about the operators whose values gradients read (the cut points, here
//! `CutPoint`); the other operators follow from them. While the gradients of a cut point are computed, memory holds the
//! values kept so far and, if the cut point is recomputed, the values of its current run: connected operators that are
//! recomputed at the same time. A choice is summarised by its time so far and its bytes so far of both kinds. Of two
//! choices that later operators cannot tell apart, the one that is better in all three is enough. On a chain of
//! operators the result is exact, up to the spacing of the limits and as long as no choice is dropped for lack of
//! space.

use std::hash::{Hash, Hasher};

use rustc_hash::FxHasher;

use super::{RecomputeSet, cost_model::CostModel};

/// Number of choices continued from a cut point, times the number of cut points.
const CHOICES: usize = 1 << 14;
/// Number of parts of a limit, one of them subtracted for the next limit, times the number of cut points.
const LIMITS: usize = 1 << 13;

/// A cut point: an operator whose values gradients read.
struct CutPoint {
    op: usize,
    /// If it can be recomputed: the other operators that must be recomputed with it.
    with: Option<Vec<usize>>,
    /// The cut points whose values it reads then.
    inputs: Vec<usize>,
    /// The last cut point that has it among its inputs.
    last_reader: usize,
    /// Cost of recomputing it, in picoseconds.
    time: u64,
    /// Bytes of its values that only its own gradients read, or operators fused with it.
    own: usize,
    /// Bytes of its values that only gradients of later operators read.
    later: usize,
    /// Bytes of its values that take no memory if recomputed where gradients read them.
    fused: usize,
    /// Whether gradients of a later operator read its values.
    read_before: bool,
    /// Bytes, apart from values, while its own gradients are computed.
    fixed: usize,
    /// The same for the operators between the previous cut point and it.
    gap: usize,
}

/// Cut points that are recomputed together.
#[derive(Clone, Copy)]
struct RepeatedRun {
    start: usize,
    bytes: usize,
    /// Bytes of its last cut point that count only if another follows.
    fused: usize,
    /// The last cut point that has one of them among its inputs.
    last_reader: usize,
}

/// A choice for the cut points so far.
#[derive(Clone)]
struct CutChoice {
    /// A bit for each cut point: whether it is recomputed.
    again: Vec<u64>,
    /// Picoseconds.
    time: u64,
    /// Bytes that are kept.
    kept: usize,
    run: Option<RepeatedRun>,
}

impl CutChoice {
    fn is_recomputed(&self, k: usize) -> bool {
        self.again[k / 64] >> (k % 64) & 1 == 1
    }

    fn run_bytes(&self) -> usize {
        self.run.map_or(0, |run| run.bytes)
    }

    /// Whether it takes less time and less memory of each kind than another.
    fn is_better(&self, other: &CutChoice) -> bool {
        self.time <= other.time && self.kept <= other.kept && self.run_bytes() <= other.run_bytes()
    }
}

/// The sets found, with decreasing memory and increasing time.
pub(super) fn sets(model: &CostModel) -> Vec<RecomputeSet> {
    let (cut_points, start) = cut_points(model);
    let count = cut_points.len().max(1);
    let (most, parts) = ((CHOICES / count).clamp(64, 256), (LIMITS / count).clamp(16, 1024));
    let nothing = vec![false; model.costs.len()];
    let mut limit = model.arena_bytes(&nothing).saturating_sub(1);
    let mut sets = vec![model.set(nothing)];
    while let Some(choice) = cheapest(&cut_points, start, limit, most) {
        let mut again = vec![false; model.costs.len()];
        for (_, cut_point) in cut_points.iter().enumerate().filter(|(k, _)| choice.is_recomputed(*k)) {
            cut_point.with.iter().flatten().chain([&cut_point.op]).for_each(|op| again[*op] = true);
        }
        let (set, arena_bytes) = model.estimated_set(again);
        sets.push(set);
        limit = limit.min(arena_bytes);
        limit -= (limit / parts).max(1).min(limit);
        if limit == 0 {
            break;
        }
    }
    sets
}

/// The cheapest choice, among those kept, within a limit.
fn cheapest(cut_points: &[CutPoint], start: usize, limit: usize, most: usize) -> Option<CutChoice> {
    let again = vec![0; cut_points.len() / 64 + 1];
    let mut choices = vec![CutChoice { again, time: 0, kept: 0, run: None }];
    // Earlier cut points that later ones read.
    let mut open: Vec<usize> = vec![];
    for (k, cut_point) in cut_points.iter().enumerate() {
        let mut next = Vec::with_capacity(3 * choices.len());
        for choice in choices {
            if choice.kept + choice.run_bytes() + cut_point.gap > limit {
                continue;
            }
            if cut_point.with.is_some() {
                next.extend(recompute_from(cut_point, k, &choice, limit));
            }
            let kept = choice.kept + cut_point.own;
            let room = limit.checked_sub(kept + cut_point.fixed);
            let fits = room.is_some_and(|room| choice.run_bytes() <= room);
            // The run continues after this cut point,
            if fits && choice.run.is_some_and(|run| run.last_reader > k) {
                next.push(CutChoice { kept: kept + cut_point.later, ..choice.clone() });
            }
            // or ends with the previous one.
            let read_before = k > 0 && choice.is_recomputed(k - 1) && cut_points[k - 1].read_before;
            if fits || (room.is_some() && !read_before) {
                next.push(CutChoice { kept: kept + cut_point.later, run: None, ..choice });
            }
        }
        open.push(k);
        open.retain(|j| cut_points[*j].last_reader > k);
        choices = prune_choices(next, &open, limit, most);
    }
    choices.retain(|choice| choice.kept + start <= limit);
    choices.into_iter().min_by_key(|choice| (choice.time, choice.kept))
}

/// The choice with the cut point recomputed, in the current run or as the first of a new one.
fn recompute_from(cut_point: &CutPoint, k: usize, choice: &CutChoice, limit: usize) -> Option<CutChoice> {
    let needs = |run: &RepeatedRun| {
        run.last_reader > k || cut_point.inputs.iter().any(|j| *j >= run.start && choice.is_recomputed(*j))
    };
    let new = RepeatedRun { start: k, bytes: 0, fused: 0, last_reader: k };
    let run = choice.run.filter(needs).unwrap_or(new);
    // Reading a value of a finished run would make that run part of this one.
    if cut_point.inputs.iter().any(|j| *j < run.start && choice.is_recomputed(*j)) {
        return None;
    }
    let bytes = run.bytes + run.fused + cut_point.own + cut_point.later - cut_point.fused;
    if choice.kept + bytes.saturating_sub(cut_point.later) + cut_point.fixed > limit {
        return None;
    }
    let mut again = choice.again.clone();
    again[k / 64] |= 1 << (k % 64);
    let last_reader = run.last_reader.max(cut_point.last_reader);
    let run = RepeatedRun { start: run.start, bytes, fused: cut_point.fused, last_reader };
    Some(CutChoice {
        again,
        time: choice.time.saturating_add(cut_point.time),
        kept: choice.kept,
        run: Some(run),
    })
}

/// Drops dominated choices, then, if there are too many, the more expensive ones of those that keep about as many
/// bytes.
fn prune_choices(choices: Vec<CutChoice>, open: &[usize], limit: usize, most: usize) -> Vec<CutChoice> {
    // Equal for choices that later cut points cannot tell apart.
    let look = |choice: &CutChoice| {
        let mut hasher = FxHasher::default();
        choice.run.is_some().hash(&mut hasher);
        open.iter().for_each(|k| choice.is_recomputed(*k).hash(&mut hasher));
        hasher.finish()
    };
    let mut choices: Vec<_> = choices.into_iter().map(|choice| (look(&choice), choice)).collect();
    choices.sort_by_key(|(look, choice)| (*look, choice.time, choice.kept, choice.run_bytes()));
    let mut left: Vec<(u64, CutChoice)> = Vec::with_capacity(choices.len());
    for (look, choice) in choices {
        let mut rivals = left.iter().rev().take_while(|(other, _)| *other == look);
        if !rivals.any(|(_, other)| other.is_better(&choice)) {
            left.push((look, choice));
        }
    }
    if left.len() > most {
        let width = limit / (most / 2) + 1;
        let place = |choice: &CutChoice| (choice.run.is_some(), choice.kept / width);
        left.sort_by_key(|(_, choice)| (place(choice), choice.time));
        left.dedup_by_key(|(_, choice)| place(choice));
    }
    left.into_iter().map(|(_, choice)| choice).collect()
}

/// The cut points in program order, and the bytes, apart from their values, when the backward pass begins.
fn cut_points(model: &CostModel) -> (Vec<CutPoint>, usize) {
    let count = model.costs.len();
    // By operator: the maximum of bytes, apart from values, while its gradients are computed.
    let mut fixed = vec![0; count + 1];
    for (bytes, rule) in model.fixed_bytes().into_iter().zip(&model.rule) {
        fixed[*rule] = fixed[*rule].max(bytes);
    }
    // By operator: the operators that can recompute its inputs.
    let mut inputs: Vec<Vec<usize>> = vec![vec![]; count];
    for value in &model.values {
        value.readers.iter().for_each(|reader| inputs[*reader].extend(value.writer));
    }
    let mut cut_points: Vec<CutPoint> = vec![];
    let mut station_of = vec![None; count];
    let mut from = 0;
    let read = |op: &usize| model.writes[*op].iter().any(|id| model.values[*id].reads.is_some());
    for op in (0..count).filter(read) {
        let k = cut_points.len();
        let (mut with, mut before, mut next) = (vec![], vec![], inputs[op].clone());
        while let Some(input) = next.pop() {
            match station_of[input] {
                Some(j) => before.push(j),
                None if with.contains(&input) => {}
                None => {
                    with.push(input);
                    next.extend(&inputs[input]);
                }
            }
        }
        before.iter().for_each(|j: &usize| cut_points[*j].last_reader = k);
        let mut cut_point = CutPoint {
            op,
            time: with.iter().chain([&op]).map(|op| model.costs[*op].picoseconds()).sum(),
            with: model.candidates.binary_search(&op).is_ok().then_some(with),
            inputs: before,
            last_reader: k,
            own: 0,
            later: 0,
            fused: 0,
            read_before: false,
            fixed: fixed[op],
            gap: fixed[from..op].iter().copied().max().unwrap_or(0),
        };
        for value in model.writes[op].iter().map(|id| &model.values[*id]) {
            let Some((first, last)) = value.reads else { continue };
            cut_point.read_before |= model.rule[first] > op;
            *(if model.rule[last] > op { &mut cut_point.later } else { &mut cut_point.own }) += value.bytes;
            cut_point.fused += if value.fuses { value.bytes } else { 0 };
        }
        from = op + 1;
        station_of[op] = Some(k);
        cut_points.push(cut_point);
    }
    let start = fixed[from..].iter().copied().max().unwrap_or(0);
    (cut_points, start)
}
