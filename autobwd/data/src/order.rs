//! The order of examples in an epoch, and the part of it that a batch of a rank takes.

use std::ops::Range;

use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

/// The examples of an epoch in a random order that depends on the seed and the epoch alone (Fisher and Yates's
/// algorithm with PCG-64 numbers; the order of a seed does not change between versions).
pub(crate) fn shuffled(examples: usize, seed: u64, epoch: u64) -> Vec<usize> {
    let epochs = Pcg64Mcg::seed_from_u64(seed).next_u64();
    let mut rng = Pcg64Mcg::seed_from_u64(epochs.wrapping_add(epoch));
    let mut order: Vec<usize> = (0..examples).collect();
    for last in (1..examples).rev() {
        let other = (u128::from(rng.next_u64()) * (last as u128 + 1)) >> 64;
        order.swap(last, other as usize);
    }
    order
}

/// How an epoch is cut into batches. The `k`-th batches of all ranks are consecutive, in the order of the ranks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchTiling {
    pub(crate) examples: usize,
    /// Examples of a batch.
    pub(crate) batch: usize,
    pub(crate) rank: usize,
    pub(crate) ranks: usize,
    /// Whether the examples that do not fill a batch on every rank are left out.
    pub(crate) drop_last: bool,
}

impl BatchTiling {
    /// The examples of the `k`-th batches of all ranks.
    fn global_batch(&self) -> usize {
        self.batch.saturating_mul(self.ranks)
    }

    /// The number of batches, on each rank.
    pub(crate) fn batches(&self) -> usize {
        let rest = self.examples % self.global_batch();
        let has_rest = !self.drop_last && rest >= self.ranks;
        self.examples / self.global_batch() + usize::from(has_rest)
    }

    /// The positions of a batch in the order of the epoch. A rest is divided evenly: the first ranks get one example
    /// more.
    pub(crate) fn range(&self, batch: usize) -> Range<usize> {
        let start = batch * self.global_batch();
        let count = (self.examples - start).min(self.global_batch());
        let (each, more) = (count / self.ranks, count % self.ranks);
        let before = |rank: usize| start + rank * each + rank.min(more);
        before(self.rank)..before(self.rank + 1)
    }
}
