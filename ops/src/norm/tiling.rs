//! Tiling of a tensor for normalisation.

use std::hint::black_box;

use autobwd::{
    Buf, Cx, Result,
    op::{LaneOf, VectorLoops, Vectorised},
};

use super::DataLayout;
use crate::kernel_helpers::{KernelFloat, PART, outer_axis_inner, pieces};

/// Groups whose sums are computed at a time.
const GROUPS: usize = 512;
/// Runs shorter than this number of elements waste most of a cache line.
const RUN: usize = 64;

/// A tensor as `[outer, groups, inner]`: the elements of a group have one mean and one variance.
#[derive(Clone, Copy)]
pub(crate) struct NormTiling {
    pub(crate) outer: usize,
    pub(crate) groups: usize,
    pub(crate) inner: usize,
}

impl NormTiling {
    /// Each channel is a group.
    pub(crate) fn channels(x: &Buf<'_>, layout: DataLayout) -> NormTiling {
        let (outer, groups, inner) = outer_axis_inner(x.dims(), layout.channels(x.dims().len()));
        NormTiling { outer, groups, inner }
    }

    /// Elements of a group; 1 for empty groups, since it is a divisor.
    pub(crate) fn terms(&self) -> usize {
        (self.outer * self.inner).max(1)
    }

    /// Calls `then(first, sums)` with the sums of `term(group)` over the pairs of elements of each group, for all groups,
    /// some at a time.
    pub(crate) fn sums<T: KernelFloat, Term: Fn(f64, f64) -> [f64; K], const K: usize>(
        &self,
        cx: &Cx,
        pairs: [&[T]; 2],
        term: impl Fn(usize) -> Term + Sync,
        mut then: impl FnMut(usize, &[[f64; K]]),
    ) {
        let mut sums = [[0.0; K]; GROUPS];
        let size = self.part();
        for first in (0..self.groups).step_by(GROUPS) {
            let sums = &mut sums[..GROUPS.min(self.groups - first)];
            cx.chunks_mut(sums, size, |part, sums| self.add_up(first + part * size, pairs, &term, sums));
            then(first, sums);
        }
    }

    /// The sums of the groups from `first` on.
    fn add_up<T: KernelFloat, Term: Fn(f64, f64) -> [f64; K], const K: usize>(
        &self,
        first: usize,
        pairs: [&[T]; 2],
        term: impl Fn(usize) -> Term,
        sums: &mut [[f64; K]],
    ) {
        f64::vectorised(GroupSums { tiling: *self, first, pairs, term, sums });
    }

    /// Mean and variance of each group; the variance is the mean squared deviation.
    pub(crate) fn moments<T: KernelFloat>(
        &self,
        cx: &Cx,
        x: &[T],
        mean: &mut [T],
        variance: &mut [T],
    ) -> Result<()> {
        let (n, size) = (self.terms() as f64, self.part().min(GROUPS));
        let put = |out: &mut [T], sums: &[[f64; 1]]| {
            out.iter_mut().zip(sums).for_each(|(out, [sum])| *out = T::of(sum / n));
        };
        // The second sums find the elements of a part in the cache.
        cx.try_zip_chunks_mut([(mean, size), (variance, size)], &mut [(); 0], |part, [mean, variance], _| {
            let (mut memory, first) = ([[0.0]; GROUPS], part * size);
            let sums = &mut memory[..mean.len()];
            self.add_up(first, [x, x], |_| |x, _| [x], sums);
            put(mean, sums);
            let square = |group: usize| {
                let mean: f64 = mean[group - first].into();
                move |x, _| [(x - mean) * (x - mean)]
            };
            self.add_up(first, [x, x], square, sums);
            put(variance, sums);
            Ok(())
        })
    }

    /// The number of groups that are worth sharing between threads.
    fn part(&self) -> usize {
        (PART / self.terms()).max(RUN.div_ceil(self.inner.max(1)))
    }

    /// Calls `f(group, at, piece)` for the pieces of `out` in groups `first..first + n`, where `at` is the index of the
    /// piece's first element.
    pub(crate) fn write<T: Send>(
        &self,
        cx: &Cx,
        out: &mut [T],
        (first, n): (usize, usize),
        f: impl Fn(usize, usize, &mut [T]) + Sync,
    ) {
        // All groups together are contiguous.
        let (slabs, len) = if n == self.groups { (1, out.len()) } else { (self.outer, n * self.inner) };
        for slab in 0..slabs {
            let start = (slab * self.groups + first) * self.inner;
            cx.chunks_mut(&mut out[start..][..len], PART, |part, out| {
                pieces(out, part * PART, self.inner, usize::MAX, |run, column, piece| {
                    f(first + run % n, start + run * self.inner + column, piece);
                });
            });
        }
    }
}

/// Sums over the pairs of elements of groups, from `first` on.
struct GroupSums<'a, T, Term, const K: usize> {
    tiling: NormTiling,
    first: usize,
    pairs: [&'a [T]; 2],
    term: Term,
    sums: &'a mut [[f64; K]],
}
impl<T: KernelFloat, Term: Fn(f64, f64) -> [f64; K], Of: Fn(usize) -> Term, const K: usize> VectorLoops<f64>
    for GroupSums<'_, T, Of, K>
{
    type Output = ();

    #[inline(always)]
    fn run<F: LaneOf<f64>>(self) {
        let (NormTiling { outer, groups, inner }, [x, y]) = (self.tiling, self.pairs);
        self.sums.fill([0.0; K]);
        for run in 0..outer {
            for (i, sums) in self.sums.iter_mut().enumerate() {
                let at = (run * groups + self.first + i) * inner;
                let new = sums_of_run(&x[at..][..inner], &y[at..][..inner], (self.term)(self.first + i));
                for k in 0..K {
                    sums[k] += new[k];
                }
            }
        }
    }
}

/// `K` sums over pairs of elements; several accumulators are faster than one, and more exact.
#[inline(always)]
fn sums_of_run<T: KernelFloat, const K: usize>(
    x: &[T],
    y: &[T],
    term: impl Fn(f64, f64) -> [f64; K],
) -> [f64; K] {
    let ((x, x_rest), (y, y_rest)) = (x.as_chunks::<8>(), y.as_chunks::<8>());
    let mut lanes = [[0.0; 8]; K];
    for (x, y) in x.iter().zip(y) {
        for (i, (x, y)) in x.iter().zip(y).enumerate() {
            let terms = term((*x).into(), (*y).into());
            lanes.iter_mut().zip(terms).for_each(|(lanes, term)| lanes[i] += term);
        }
    }
    // The compiler would otherwise keep lanes of different sums in one vector, which takes three times as long.
    let mut sums = black_box(lanes).map(|lanes| lanes.iter().sum::<f64>());
    for (x, y) in x_rest.iter().zip(y_rest) {
        let terms = term((*x).into(), (*y).into());
        sums.iter_mut().zip(terms).for_each(|(sum, term)| *sum += term);
    }
    sums
}
