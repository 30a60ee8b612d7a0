//! Tiling of a tensor for normalisation.

use std::ops::Range;

use autobwd::{Buf, Cx};

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

    /// Calls `then(first, sums)` with the sums of `f(group, range)` over the runs of each group, for all groups, some
    /// at a time.
    pub(crate) fn sums<const K: usize>(
        &self,
        cx: &Cx,
        f: impl Fn(usize, Range<usize>) -> [f64; K] + Sync,
        mut then: impl FnMut(usize, &[[f64; K]]),
    ) {
        let mut sums = [[0.0; K]; GROUPS];
        let size = (PART / self.terms()).max(RUN.div_ceil(self.inner.max(1)));
        for first in (0..self.groups).step_by(GROUPS) {
            let sums = &mut sums[..GROUPS.min(self.groups - first)];
            cx.chunks_mut(sums, size, |part, sums| {
                sums.fill([0.0; K]);
                for outer in 0..self.outer {
                    for (i, sums) in sums.iter_mut().enumerate() {
                        let group = first + part * size + i;
                        let at = (outer * self.groups + group) * self.inner;
                        let new = f(group, at..at + self.inner);
                        sums.iter_mut().zip(new).for_each(|(sum, new)| *sum += new);
                    }
                }
            });
            then(first, sums);
        }
    }

    /// Mean and variance of each group; the variance is the mean squared deviation.
    pub(crate) fn moments<T: KernelFloat>(&self, cx: &Cx, x: &[T], mean: &mut [T], variance: &mut [T]) {
        let n = self.terms() as f64;
        let put = |out: &mut [T], sums: &[[f64; 1]]| {
            out.iter_mut().zip(sums).for_each(|(out, [sum])| *out = T::of(sum / n));
        };
        self.sums(
            cx,
            |_, range| sums(&x[range.clone()], &x[range], |x, _| [x]),
            |first, sums| put(&mut mean[first..], sums),
        );
        let mean = &*mean;
        let squares = |group: usize, range: Range<usize>| {
            let mean: f64 = mean[group].into();
            sums(&x[range.clone()], &x[range], |x, _| [(x - mean) * (x - mean)])
        };
        self.sums(cx, squares, |first, sums| put(&mut variance[first..], sums));
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

/// `K` sums over pairs of elements; several accumulators are faster than one, and more exact.
pub(crate) fn sums<T: KernelFloat, const K: usize>(
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
    let mut sums = lanes.map(|lanes| lanes.iter().sum::<f64>());
    for (x, y) in x_rest.iter().zip(y_rest) {
        let terms = term((*x).into(), (*y).into());
        sums.iter_mut().zip(terms).for_each(|(sum, term)| *sum += term);
    }
    sums
}
