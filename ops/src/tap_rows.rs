//! Sliding windows over planes, several adjacent windows at a time.
//!
//! Rows are copied to scratch memory, with padding, and split by column modulo stride. The elements under one tap of
//! adjacent windows are then contiguous, and there are no windows at borders to treat separately.
#![allow(clippy::needless_range_loop)] // Indexed loops are vectorised.

use std::ops::Range;

use autobwd::op::{Factor, LaneOf};

use crate::windows::Windows;

/// Adjacent windows that are computed together: a cache line of `f32`.
pub(crate) const BLOCK: usize = 16;
/// Elements of the copied rows, such that they stay in the cache.
const BAND: usize = 1 << 13;

/// Windows over a plane.
#[derive(Clone, Copy)]
pub(crate) struct TapRows {
    /// Height and width of the plane.
    x: [usize; 2],
    /// Numbers of windows.
    out: [usize; 2],
    windows: [Windows; 2],
    /// Elements of one part of a copied row. Blocks may be copied and read as a whole.
    part: usize,
    /// Rows of windows that are computed from one copy.
    band: usize,
}

impl TapRows {
    /// Such windows over a plane, if they are `widths` wide and their strides and paddings are small.
    pub(crate) fn new(
        x: [usize; 2],
        out: [usize; 2],
        windows: [Windows; 2],
        widths: &[usize],
    ) -> Option<TapRows> {
        let [down, across] = &windows;
        let small = widths.contains(&across.size) && across.stride <= 2 && across.before < across.size;
        if !small || (down.dilation, across.dilation) != (1, 1) {
            return None;
        }
        let part = x[1].div_ceil(across.stride).max(out[1]).next_multiple_of(BLOCK) + across.size;
        let rows = BAND / (part * across.stride);
        let band = rows.saturating_sub(down.size) / down.stride + 1;
        Some(TapRows { x, out, windows, part, band: band.min(out[0]).max(1) })
    }

    /// Columns of a window.
    pub(crate) fn width(&self) -> usize {
        self.windows[1].size
    }

    /// Numbers of windows.
    pub(crate) fn out(&self) -> [usize; 2] {
        self.out
    }

    /// The distance of windows in a row.
    pub(crate) fn stride(&self) -> usize {
        self.windows[1].stride
    }

    /// Rows of a window.
    pub(crate) fn height(&self) -> usize {
        self.windows[0].size
    }

    /// Elements of a window.
    pub(crate) fn taps(&self) -> usize {
        self.windows[0].size * self.windows[1].size
    }

    /// Elements of a copied row.
    pub(crate) fn row(&self) -> usize {
        self.part * self.windows[1].stride
    }

    /// The rows under `rows` of windows.
    fn under(&self, rows: &Range<usize>) -> Range<usize> {
        let Windows { size, stride, before, .. } = self.windows[0];
        let end = (rows.end - 1).saturating_mul(stride).saturating_add(size);
        let end = end.saturating_sub(before).min(self.x[0]);
        rows.start.saturating_mul(stride).saturating_sub(before).min(end)..end
    }

    /// Rows of windows that are computed from one copy, and the rows that are copied for them.
    pub(crate) fn bands(&self) -> impl Iterator<Item = (Range<usize>, Range<usize>)> {
        let rows = *self;
        (0..self.out[0]).step_by(self.band).map(move |first| {
            let band = first..rows.out[0].min(first + rows.band);
            (band.clone(), rows.under(&band))
        })
    }

    /// Elements of scratch memory.
    pub(crate) fn scratch(&self) -> usize {
        let Windows { size, stride, .. } = self.windows[0];
        let rows = (self.band - 1).saturating_mul(stride).saturating_add(size);
        self.row() * rows.min(self.x[0])
    }

    /// Copies rows of `x`, with `S` as horizontal stride.
    #[inline(always)]
    pub(crate) fn copy<X: Factor, const S: usize>(
        &self,
        x: &[X],
        rows: Range<usize>,
        padding: X,
        copy: &mut [X::Sum],
    ) {
        let (width, before, part) = (self.x[1], self.windows[1].before, self.part);
        let used = self.out[1] + (self.width() - 1) / S;
        // Start of a part, and the index of a column of `x` in it.
        let column = |x: usize| ((x + before) % S * part, (x + before) / S);
        for (y, copy) in rows.zip(copy.chunks_exact_mut(self.row())) {
            let x = &x[y * width..];
            let groups = x.as_chunks::<S>().0;
            for at in (0..width.div_ceil(S)).step_by(BLOCK) {
                // The end of a block may belong to the next row: padding or the next part overwrites it.
                if let Some(groups) = groups.get(at..).and_then(|groups| groups.first_chunk::<BLOCK>()) {
                    // Arrays of their own, since the compiler does not know that `x` and `copy` do not overlap.
                    let mut parts = [[padding.widened(); BLOCK]; S];
                    for l in 0..BLOCK {
                        for phase in 0..S {
                            parts[phase][l] = groups[l][phase].widened();
                        }
                    }
                    for phase in 0..S {
                        let (start, first) = column(phase);
                        copy[start + first + at..][..BLOCK].copy_from_slice(&parts[phase]);
                    }
                } else {
                    for (x, value) in x.iter().enumerate().take(width).skip(at * S) {
                        let (start, k) = column(x);
                        copy[start + k] = value.widened();
                    }
                }
            }
            for phase in 0..S {
                let (start, first) = column(phase);
                let copy = &mut copy[start..][..part];
                copy[..first].fill(padding.widened());
                let end = first + width.saturating_sub(phase).div_ceil(S);
                copy[end..used.max(end)].fill(padding.widened());
            }
        }
    }

    /// Folds the elements under every window of a plane, row by row: `f(row)` returns the function that folds the
    /// elements in that row of a window. Padding above and below is left out, that at the sides is `padding`.
    #[inline(always)]
    pub(crate) fn fold<X: Factor, F: LaneOf<X::Sum>, G: Fn(F, [F; W]) -> F, const W: usize>(
        &self,
        x: (&[X], X),
        out: (&mut [X::Sum], F),
        scratch: &mut [X::Sum],
        f: impl Fn(usize) -> G,
    ) {
        match self.windows[1].stride {
            1 => self.fold_by::<X, F, G, W, 1>(x, out, scratch, f),
            _ => self.fold_by::<X, F, G, W, 2>(x, out, scratch, f),
        }
    }

    /// The same with `S` as horizontal stride.
    #[inline(always)]
    fn fold_by<X: Factor, F: LaneOf<X::Sum>, G: Fn(F, [F; W]) -> F, const W: usize, const S: usize>(
        &self,
        (x, padding): (&[X], X),
        (out, start): (&mut [X::Sum], F),
        scratch: &mut [X::Sum],
        f: impl Fn(usize) -> G,
    ) {
        let ([_, width], [down, _]) = (self.out, &self.windows);
        let len = self.row();
        for (band, copied) in self.bands() {
            self.copy::<X, S>(x, copied.clone(), padding, scratch);
            for y in band {
                let under = self.under(&(y..y + 1));
                let skipped = down.before.saturating_sub(y.saturating_mul(down.stride));
                let copy = &scratch[(under.start - copied.start) * len..];
                for at in (0..width).step_by(BLOCK) {
                    let mut folded = [start; BLOCK];
                    for row in 0..under.len() {
                        let (f, copy) = (f(skipped + row), &copy[row * len..]);
                        let x = self.taps_of::<_, F, W, S>(copy, at, start);
                        for l in 0..BLOCK {
                            let mut under = [start; W];
                            for tap in 0..W {
                                under[tap] = x[tap][l];
                            }
                            folded[l] = f(folded[l], under);
                        }
                    }
                    // The end of a block may reach into the next row, which is written later.
                    let out = &mut out[y * width + at..];
                    if let Some(out) = out.first_chunk_mut::<BLOCK>() {
                        for l in 0..BLOCK {
                            out[l] = folded[l].get();
                        }
                    } else {
                        out.iter_mut().zip(folded).for_each(|(out, folded)| *out = folded.get());
                    }
                }
            }
        }
    }

    /// Sets `out`, from 0 on, by the elements under the taps of every window, tap by tap: `f(tap, found, own, element)`
    /// returns the next number of a window from the number that was found before and from its number `own`.
    #[inline(always)]
    pub(crate) fn fold_taps<X: Factor, F: LaneOf<X::Sum>, const W: usize>(
        &self,
        (x, padding): (&[X], X),
        own: &[X::Sum],
        out: &mut [X::Sum],
        scratch: &mut [X::Sum],
        f: impl Fn(usize, F, F, F) -> F,
    ) {
        match self.windows[1].stride {
            1 => self.fold_taps_by::<X, F, W, 1>((x, padding), own, out, scratch, f),
            _ => self.fold_taps_by::<X, F, W, 2>((x, padding), own, out, scratch, f),
        }
    }

    /// The same with `S` as horizontal stride.
    #[inline(always)]
    fn fold_taps_by<X: Factor, F: LaneOf<X::Sum>, const W: usize, const S: usize>(
        &self,
        (x, padding): (&[X], X),
        own: &[X::Sum],
        out: &mut [X::Sum],
        scratch: &mut [X::Sum],
        f: impl Fn(usize, F, F, F) -> F,
    ) {
        let (width, zero) = (self.out[1], F::from(0.0));
        for (band, copied) in self.bands() {
            self.copy::<X, S>(x, copied.clone(), padding, scratch);
            for y in band {
                let (own, out) = (&own[y * width..][..width], &mut out[y * width..][..width]);
                for at in (0..width).step_by(BLOCK) {
                    let (own, mut found) = (block(&own[at..], zero), [zero; BLOCK]);
                    for row in 0..self.height() {
                        let Some(under) = self.row_under(y, row) else { continue };
                        let copy = &scratch[(under - copied.start) * self.row()..];
                        let x = self.taps_of::<_, F, W, S>(copy, at, zero);
                        for tap in 0..W {
                            for l in 0..BLOCK {
                                found[l] = f(row * W + tap, found[l], own[l], x[tap][l]);
                            }
                        }
                    }
                    out[at..].iter_mut().zip(found).for_each(|(out, found)| *out = found.get());
                }
            }
        }
    }

    /// The row of the plane under a row of a window, if there is one.
    #[inline(always)]
    pub(crate) fn row_under(&self, window: usize, row: usize) -> Option<usize> {
        let Windows { stride, before, .. } = self.windows[0];
        (window * stride + row).checked_sub(before).filter(|under| *under < self.x[0])
    }

    /// The elements of a copied row under each tap, for a block of windows from `at` on.
    #[inline(always)]
    pub(crate) fn taps_of<T: Copy, F: LaneOf<T>, const W: usize, const S: usize>(
        &self,
        copy: &[T],
        at: usize,
        start: F,
    ) -> [[F; BLOCK]; W] {
        // One check of bounds for all taps of a part.
        let mut parts = [copy; S];
        for phase in 0..S {
            parts[phase] = &copy[phase * self.part + at..][..BLOCK + (W - 1) / S];
        }
        let mut taps = [[start; BLOCK]; W];
        for tap in 0..W {
            let from = &parts[tap % S][tap / S..][..BLOCK];
            for l in 0..BLOCK {
                taps[tap][l] = F::new(from[l]);
            }
        }
        taps
    }
}

/// The first elements, filled up to a block.
#[inline(always)]
fn block<X: Factor, F: LaneOf<X::Sum>>(from: &[X], fill: F) -> [F; BLOCK] {
    let mut block = [fill; BLOCK];
    if let Some(from) = from.first_chunk::<BLOCK>() {
        for l in 0..BLOCK {
            block[l] = F::new(from[l].widened());
        }
    } else {
        block.iter_mut().zip(from).for_each(|(own, from)| *own = F::new(from.widened()));
    }
    block
}

#[cfg(test)]
mod tests {
    use autobwd::op::{VectorLoops, Vectorised};

    use super::*;

    /// Sums the elements of each window, with weights that tell its elements apart.
    struct Weighted<'a, const W: usize>(TapRows, &'a [f64], &'a mut [f64], &'a mut [f64]);

    impl<const W: usize> VectorLoops<f64> for Weighted<'_, W> {
        type Output = ();

        #[inline(always)]
        fn run<F: LaneOf<f64>>(self) {
            self.0.fold((self.1, 0.5), (self.2, F::from(0.0)), self.3, |row| {
                move |sum, x: [F; W]| {
                    let each = x.into_iter().enumerate();
                    each.fold(sum, |sum, (tap, x)| sum + x * F::from((row * W + tap + 1) as f64))
                }
            });
        }
    }

    fn check<const W: usize>(x_size: [usize; 2], down: Windows, across: Windows) {
        let windows = [down, across];
        let counts = [0, 1].map(|i| windows[i].count(x_size[i], false));
        let [Some(rows), Some(columns)] = counts else { return };
        let Some(taps) = TapRows::new(x_size, [rows, columns], windows, &[W]) else {
            panic!("windows of {W} columns are small");
        };
        let x: Vec<f64> = (0..x_size[0] * x_size[1]).map(|i| (i * 7 % 31) as f64).collect();
        let (mut out, mut scratch) = (vec![f64::NAN; rows * columns], vec![f64::NAN; taps.scratch()]);
        f64::vectorised(Weighted::<W>(taps, &x, &mut out, &mut scratch));
        for (i, out) in out.into_iter().enumerate() {
            let (top, left) = (i / columns * down.stride, i % columns * across.stride);
            let mut sum = 0.0;
            for row in
                (0..down.size).filter(|row| (down.before..down.before + x_size[0]).contains(&(top + row)))
            {
                for tap in 0..W {
                    let column = (left + tap).checked_sub(across.before).filter(|column| *column < x_size[1]);
                    let value =
                        column.map_or(0.5, |column| x[(top + row - down.before) * x_size[1] + column]);
                    sum += value * (row * W + tap + 1) as f64;
                }
            }
            assert_eq!(out, sum, "window {i} of {x_size:?}");
        }
    }

    #[test]
    fn each_window_is_folded_in_order_whatever_its_place() {
        let of =
            |size, stride, [before, after]: [usize; 2]| Windows { size, stride, dilation: 1, before, after };
        // 700 rows of 33 columns are more than one band.
        let sizes =
            [[1, 1], [3, 7], [4, 8], [2, 15], [5, 16], [3, 17], [2, 31], [700, 33], [2, 64], [1, 9000]];
        for x_size in sizes {
            for (down, across) in [(1, 1), (2, 2), (3, 1), (1, 2)] {
                for [before, after] in [[0, 0], [1, 1], [2, 0], [0, 2], [2, 3]] {
                    check::<3>(x_size, of(2, down, [7, 1]), of(3, across, [before, after]));
                    check::<5>(x_size, of(4, down, [before, after]), of(5, across, [before + 2, after]));
                    check::<2>(x_size, of(3, down, [1, after]), of(2, across, [before.min(1), after]));
                }
            }
        }
    }
}
