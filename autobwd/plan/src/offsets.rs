//! Offset assignment of buffers in one arena: greedy by size, or best fit by time.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, BinaryHeap},
};

/// The lifetime of a buffer, from one group to another, both included.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Buffer {
    pub(crate) bytes: usize,
    pub(crate) first: usize,
    pub(crate) last: usize,
}

impl Buffer {
    fn overlaps(&self, other: &Buffer) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

/// Number of buffers up to which other orders are tried if two leave gaps; more would take long.
const MANY: usize = 4096;
/// Limit of comparisons for one order: enough for 8,000 buffers that are all live together.
const COMPARISONS: usize = 1 << 25;

/// Offsets, and the size of the arena. An order with too many comparisons is given up for placement by time.
pub(super) fn offsets(buffers: &[Buffer]) -> (Vec<usize>, usize) {
    by_size(buffers, COMPARISONS).unwrap_or_else(|| by_time(buffers))
}

/// Largest first, each at the lowest offset free during its lifetime ("greedy by size", Pisarchyk and Lee, 2020). Equal
/// sizes are ordered by length of lifetime, longest first, which suits values kept for the backward pass. If that
/// leaves gaps, other orders are tried: equal sizes by start; by size times lifetime; by latest end. Gives up when the
/// first order takes more comparisons than `comparisons`.
fn by_size(buffers: &[Buffer], comparisons: usize) -> Option<(Vec<usize>, usize)> {
    type Key = (Reverse<usize>, Reverse<usize>, usize);
    let orders: [fn(&Buffer) -> Key; 4] = [
        |b| (Reverse(b.bytes), Reverse(b.last), b.first),
        |b| (Reverse(b.bytes), Reverse(0), b.first),
        |b| (Reverse(b.bytes.saturating_mul(b.last - b.first + 1)), Reverse(b.bytes), b.first),
        |b| (Reverse(b.last), Reverse(b.bytes), b.first),
    ];
    let (least, tried) = (live_bytes(buffers), if buffers.len() > MANY { 2 } else { orders.len() });
    let mut best: Option<(Vec<usize>, usize)> = None;
    let mut order: Vec<usize> = (0..buffers.len()).collect();
    for key in &orders[..tried] {
        order.sort_by_key(|i| key(&buffers[*i]));
        let Some(placed) = place_in(&order, buffers, comparisons) else { break };
        if best.as_ref().is_none_or(|best| placed.1 < best.1) {
            best = Some(placed);
        }
        if best.as_ref().is_some_and(|best| best.1 == least) {
            break;
        }
    }
    best
}

fn place_in(order: &[usize], buffers: &[Buffer], comparisons: usize) -> Option<(Vec<usize>, usize)> {
    let (mut offsets, mut top, mut compared) = (vec![0; buffers.len()], 0, 0);
    // Placed buffers with their offsets, sorted by offset.
    let mut placed: Vec<(usize, Buffer)> = Vec::with_capacity(buffers.len());
    for &i in order {
        let buffer = &buffers[i];
        let mut at = 0;
        for (offset, other) in &placed {
            compared += 1;
            if !other.overlaps(buffer) {
                continue;
            }
            if *offset >= at + buffer.bytes {
                break;
            }
            at = at.max(offset + other.bytes);
        }
        if compared > comparisons {
            return None;
        }
        offsets[i] = at;
        top = top.max(at + buffer.bytes);
        let position = placed.partition_point(|(offset, _)| *offset < at);
        placed.insert(position, (at, *buffer));
    }
    Some((offsets, top))
}

/// In the order of allocation, forwards and backwards in time, each in the smallest free gap ("best fit"), in
/// `O(n log n)`. Returns the better of both.
fn by_time(buffers: &[Buffer]) -> (Vec<usize>, usize) {
    let end = buffers.iter().map(|b| b.last).max().unwrap_or(0);
    let reversed = |b: &Buffer| Buffer { first: end - b.last, last: end - b.first, ..*b };
    let (forwards, backwards) =
        (best_fit(buffers), best_fit(&buffers.iter().map(reversed).collect::<Vec<_>>()));
    if backwards.1 < forwards.1 { backwards } else { forwards }
}

fn best_fit(buffers: &[Buffer]) -> (Vec<usize>, usize) {
    let mut order: Vec<usize> = (0..buffers.len()).collect();
    order.sort_by_key(|i| (buffers[*i].first, Reverse(buffers[*i].bytes)));
    let (mut offsets, mut gaps) = (vec![0; buffers.len()], FreeRanges::default());
    let mut live: BinaryHeap<Reverse<(usize, usize)>> = BinaryHeap::new();
    for i in order {
        while let Some(Reverse((last, gone))) = live.peek().copied()
            && last < buffers[i].first
        {
            live.pop();
            gaps.give(offsets[gone], buffers[gone].bytes);
        }
        offsets[i] = gaps.take(buffers[i].bytes);
        live.push(Reverse((buffers[i].last, i)));
    }
    (offsets, gaps.top)
}

/// Gaps below the top of a growing arena.
#[derive(Default)]
struct FreeRanges {
    /// Sizes by offset, and the same by size.
    by_offset: BTreeMap<usize, usize>,
    by_size: BTreeSet<(usize, usize)>,
    top: usize,
}

impl FreeRanges {
    fn remove(&mut self, at: usize, bytes: usize) {
        self.by_offset.remove(&at);
        self.by_size.remove(&(bytes, at));
    }

    fn add(&mut self, at: usize, bytes: usize) {
        if bytes > 0 {
            self.by_offset.insert(at, bytes);
            self.by_size.insert((bytes, at));
        }
    }

    fn take(&mut self, bytes: usize) -> usize {
        let fits = self.by_size.range((bytes, 0)..).next().copied();
        // Otherwise the arena grows, starting from a gap at its end.
        let at_end = || self.by_offset.last_key_value().filter(|(at, gap)| *at + *gap == self.top);
        let (gap, at) = fits.or_else(|| at_end().map(|(at, gap)| (*gap, *at))).unwrap_or((0, self.top));
        self.remove(at, gap);
        self.add(at + bytes, gap.saturating_sub(bytes));
        self.top = self.top.max(at + bytes);
        at
    }

    fn give(&mut self, mut at: usize, mut bytes: usize) {
        if let Some((&before, &gap)) = self.by_offset.range(..at).next_back()
            && before + gap == at
        {
            self.remove(before, gap);
            (at, bytes) = (before, bytes + gap);
        }
        if let Some(&gap) = self.by_offset.get(&(at + bytes)) {
            self.remove(at + bytes, gap);
            bytes += gap;
        }
        self.add(at, bytes);
    }
}

/// The maximum over groups of the sum of live bytes.
pub(super) fn live_bytes(buffers: &[Buffer]) -> usize {
    let end = buffers.iter().map(|b| b.last + 1).max().unwrap_or(0);
    let mut change = vec![0_isize; end + 1];
    for buffer in buffers {
        change[buffer.first] += buffer.bytes as isize;
        change[buffer.last + 1] -= buffer.bytes as isize;
    }
    let running = change.iter().scan(0, |sum, c| {
        *sum += c;
        Some(*sum)
    });
    running.max().unwrap_or(0) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buffer(bytes: usize, first: usize, last: usize) -> Buffer {
        Buffer { bytes, first, last }
    }

    #[test]
    fn buffers_that_live_at_the_same_time_are_apart() {
        // A small random number generator, for lifetimes and sizes of all kinds.
        let mut state = 1_u64;
        let mut next = |n: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % n
        };
        for _ in 0..50 {
            let buffers: Vec<_> = (0..40)
                .map(|_| {
                    let first = next(30) as usize;
                    buffer(64 * (1 + next(20) as usize), first, first + next(8) as usize)
                })
                .collect();
            for (offsets, top) in [offsets(&buffers), by_time(&buffers)] {
                for (i, a) in buffers.iter().enumerate() {
                    assert!(offsets[i] + a.bytes <= top);
                    for (j, b) in buffers.iter().enumerate().take(i) {
                        let apart = offsets[i] + a.bytes <= offsets[j] || offsets[j] + b.bytes <= offsets[i];
                        assert!(apart || !a.overlaps(b), "{a:?} {b:?}");
                    }
                }
                assert!(top >= live_bytes(&buffers));
                assert!(top <= 2 * live_bytes(&buffers), "{top} for {}", live_bytes(&buffers));
            }
        }
    }

    #[test]
    fn many_buffers_take_no_more_comparisons_than_allowed() {
        // All live together, and one after the other.
        let wide: Vec<_> = (0..300_000).map(|i| buffer(64, i, 300_000)).collect();
        let chain: Vec<_> = (0..300_000).map(|i| buffer(64, i, i + 1)).collect();
        for (buffers, top) in [(wide, 300_000 * 64), (chain, 128)] {
            assert_eq!(by_size(&buffers, 1 << 20), None);
            assert_eq!(by_time(&buffers).1, top);
            // Hundreds of times the limit of comparisons, if it did not give up.
            assert_eq!(offsets(&buffers).1, top);
        }
        let few: Vec<_> = (0..4000).map(|i| buffer(64, i, 4000)).collect();
        assert!(by_size(&few, COMPARISONS).is_some());
    }

    #[test]
    fn memory_is_used_again() {
        let chain: Vec<_> = (0..10).map(|i| buffer(64, i, i + 1)).collect();
        assert_eq!(offsets(&chain).1, 128);
        assert_eq!(live_bytes(&chain), 128);
    }
}
