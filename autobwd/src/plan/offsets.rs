//! Offsets of buffers in one arena.

use std::cmp::Reverse;

/// Memory that is needed from one group to another, both included.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Buffer {
    pub(crate) bytes: usize,
    pub(crate) first: usize,
    pub(crate) last: usize,
}

impl Buffer {
    fn meets(&self, other: &Buffer) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

/// Where other orders are tried, too, if two leave gaps: with more buffers it would take long.
const MANY: usize = 4096;

/// Offsets, and the size of the arena: largest first, each at the lowest offset where it meets no buffer that is live
/// at the same time ("greedy by size", Pisarchyk and Lee, 2020). Of those of one size, the one that is needed longest
/// comes first, which suits values that wait for the backward part. While that leaves gaps, other orders are tried: of
/// one size, the one that is needed first; largest and longest first; the one that waits for the end first.
pub(super) fn offsets(buffers: &[Buffer]) -> (Vec<usize>, usize) {
    type Key = (Reverse<usize>, Reverse<usize>, usize);
    let orders: [fn(&Buffer) -> Key; 4] = [
        |b| (Reverse(b.bytes), Reverse(b.last), b.first),
        |b| (Reverse(b.bytes), Reverse(0), b.first),
        |b| (Reverse(b.bytes.saturating_mul(b.last - b.first + 1)), Reverse(b.bytes), b.first),
        |b| (Reverse(b.last), Reverse(b.bytes), b.first),
    ];
    let (least, tried) = (live_bytes(buffers), if buffers.len() > MANY { 2 } else { orders.len() });
    let mut best = (vec![], usize::MAX);
    let mut order: Vec<usize> = (0..buffers.len()).collect();
    for key in &orders[..tried] {
        order.sort_by_key(|i| key(&buffers[*i]));
        let placed = place_in(&order, buffers);
        if placed.1 < best.1 {
            best = placed;
        }
        if best.1 == least {
            break;
        }
    }
    best
}

fn place_in(order: &[usize], buffers: &[Buffer]) -> (Vec<usize>, usize) {
    let (mut offsets, mut top) = (vec![0; buffers.len()], 0);
    // Placed buffers, sorted by offset.
    let mut placed: Vec<usize> = Vec::with_capacity(buffers.len());
    for &i in order {
        let buffer = &buffers[i];
        let mut at = 0;
        for other in placed.iter().filter(|o| buffers[**o].meets(buffer)) {
            if offsets[*other] >= at + buffer.bytes {
                break;
            }
            at = at.max(offsets[*other] + buffers[*other].bytes);
        }
        offsets[i] = at;
        top = top.max(at + buffer.bytes);
        let position = placed.partition_point(|o| offsets[*o] < at);
        placed.insert(position, i);
    }
    (offsets, top)
}

/// The largest sum of bytes that are live in one group.
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
        // A small generator: lifetimes and sizes all over the place.
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
            let (offsets, top) = offsets(&buffers);
            for (i, a) in buffers.iter().enumerate() {
                assert!(offsets[i] + a.bytes <= top);
                for (j, b) in buffers.iter().enumerate().take(i) {
                    let apart = offsets[i] + a.bytes <= offsets[j] || offsets[j] + b.bytes <= offsets[i];
                    assert!(apart || !a.meets(b), "{a:?} {b:?}");
                }
            }
            assert!(top >= live_bytes(&buffers));
        }
    }

    #[test]
    fn memory_is_used_again() {
        let chain: Vec<_> = (0..10).map(|i| buffer(64, i, i + 1)).collect();
        assert_eq!(offsets(&chain).1, 128);
        assert_eq!(live_bytes(&chain), 128);
    }
}
