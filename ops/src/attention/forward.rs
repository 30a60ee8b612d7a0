//! The forward pass of attention, with the online softmax of Milakov and Gimelshein (2018).

use autobwd::{
    Cx, Result,
    op::{DividedMat, LaneOf, Mat, VectorLoops, map_lanes},
};

use super::scores::{KEYS, ROWS, Scores, Sizes, Tile};
use crate::{
    kernel_helpers::KernelFloat,
    simd_loops::{largest, map_sum},
};

/// Numbers of scratch memory for each worker.
pub(super) fn scratch_len(sizes: Sizes) -> usize {
    sizes.tile() + ROWS.min(sizes.queries) * sizes.width
}

/// Computes the output, and the logarithms of sums unless there is no place for them.
pub(super) fn attend<T: KernelFloat>(
    scores: &Scores<'_, T>,
    cx: &Cx,
    out: &mut [T],
    log_sum: &mut [T],
) -> Result<()> {
    let sizes = scores.sizes;
    let Sizes { batch, queries, heads, width, .. } = sizes;
    let outs = [
        DividedMat { data: out, cols: heads * width, part: [ROWS, width] },
        DividedMat { data: log_sum, cols: heads, part: [ROWS, 1] },
    ];
    cx.scratch(scratch_len(sizes) * cx.threads(), |scratch| {
        cx.try_zip_submatrices_mut(outs, scratch, |[part, head], [mut out, mut log_sum], scratch| {
            let (tile, sums) = scratch.split_at_mut(sizes.tile());
            let (start, end) = (part * ROWS, (batch * queries).min((part + 1) * ROWS));
            let mut done = 0;
            for block in scores.forward_blocks(start..end, head) {
                let mut softmax = OnlineSoftmax::new(block.rows);
                sums.fill(T::of(0.0));
                for tile_of in scores.tiles(block) {
                    let weights = &mut tile[..block.rows * tile_of.keys];
                    softmax.extend(scores, cx, tile_of, weights, sums)?;
                }
                T::vectorised(Finish { softmax: &mut softmax });
                for row in 0..block.rows {
                    if !out.is_empty() {
                        let (share, sums) = (softmax.shares[row], &sums[row * width..]);
                        out.row(done + row).iter_mut().zip(sums).for_each(|(out, sum)| *out = *sum * share);
                    }
                    if !log_sum.is_empty() {
                        log_sum.row(done + row)[0] = softmax.tops[row];
                    }
                }
                done += block.rows;
            }
            Ok(())
        })
    })
}

/// The softmax of some rows, after some of their tiles.
struct OnlineSoftmax<T> {
    rows: usize,
    /// The largest scores; in the end, the logarithms of sums.
    tops: [T; ROWS],
    /// The sums of exponentials, relative to the largest ones.
    totals: [T; ROWS],
    /// The factors of sums for a new largest score; in the end, the factors of the output.
    shares: [T; ROWS],
    is_new: bool,
}

impl<T: KernelFloat> OnlineSoftmax<T> {
    fn new(rows: usize) -> OnlineSoftmax<T> {
        let (tops, zeros) = ([T::of(f64::NEG_INFINITY); ROWS], [T::of(0.0); ROWS]);
        OnlineSoftmax { rows, tops, totals: zeros, shares: zeros, is_new: true }
    }

    /// Adds the weighted values of a tile to `sums`.
    fn extend(
        &mut self,
        scores: &Scores<'_, T>,
        cx: &Cx,
        tile: Tile,
        weights: &mut [T],
        sums: &mut [T],
    ) -> Result<()> {
        let width = scores.sizes.width;
        scores.products(cx, tile, weights)?;
        T::vectorised(Extend { softmax: &mut *self, scores, tile, weights: &mut *weights });
        if !self.is_new {
            for (sums, share) in sums.chunks_mut(width.max(1)).zip(&self.shares[..self.rows]) {
                sums.iter_mut().for_each(|sum| *sum = *sum * *share);
            }
        }
        let weights = Mat { data: &*weights, rows: self.rows, cols: tile.keys, transposed: false };
        let values = scores.of_keys(scores.v, tile, width);
        // Added also to zeros, so that hidden tiles before it change nothing.
        cx.product_strided(sums, width, true, weights.into(), values)?;
        self.is_new = false;
        Ok(())
    }
}

/// Turns products into weights relative to the largest scores so far. Each step goes through all rows before the next
/// step, which would stall within a row.
struct Extend<'a, 'b, T> {
    softmax: &'a mut OnlineSoftmax<T>,
    scores: &'a Scores<'b, T>,
    tile: Tile,
    weights: &'a mut [T],
}
impl<T: KernelFloat> VectorLoops<T> for Extend<'_, '_, T> {
    type Output = ();

    #[inline(always)]
    fn run<F: LaneOf<T>>(self) {
        let Extend { softmax, scores, tile, weights } = self;
        let (rows, lowest) = (softmax.rows, F::from(f64::NEG_INFINITY));
        let zero = F::from(0.0);
        scores.finish::<F>(tile, weights, &mut []);
        let (shifts, sums) = (&mut [T::of(0.0); ROWS][..rows], &mut [T::of(0.0); ROWS][..rows]);
        for (weights, top) in weights.chunks_exact(tile.keys).zip(&mut *shifts) {
            *top = largest::<T, F>(weights).get();
        }
        let outs = [&mut softmax.tops[..rows], &mut softmax.totals[..rows], &mut softmax.shares[..rows]];
        let [tops, totals, shares] = outs;
        // Rows without a visible key are not shifted.
        map_lanes([], [&mut *shifts, tops, totals, shares], |[], [new, top, total, _]: [F; 4]| {
            let larger = F::select(new.gt(top), new, top);
            let shift = F::select(larger.equals(lowest), zero, larger);
            let share = (top - shift).exp();
            [shift, larger, total * share, share]
        });
        for ((weights, shift), sum) in weights.chunks_exact_mut(tile.keys).zip(&*shifts).zip(&mut *sums) {
            let shift = F::new(*shift);
            *sum = map_sum(weights, |x: F| (x - shift).exp()).get();
        }
        map_lanes([&*sums], [&mut softmax.totals[..rows]], |[sum]: [F; 1], [total]| [total + sum]);
        if scores.drops() {
            let mut factors = [T::of(1.0); KEYS];
            for (row, weights) in weights.chunks_exact_mut(tile.keys).enumerate() {
                scores.kept(tile, row, &mut factors);
                map_lanes([&factors], [weights], |[factor]: [F; 1], [x]| [x * factor]);
            }
        }
    }
}

/// Largest scores become logarithms of sums, and 0 for rows without a visible key, whose output is 0.
struct Finish<'a, T> {
    softmax: &'a mut OnlineSoftmax<T>,
}
impl<T: KernelFloat> VectorLoops<T> for Finish<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<F: LaneOf<T>>(self) {
        let OnlineSoftmax { rows, tops, totals, shares, .. } = self.softmax;
        let (zero, one) = (F::from(0.0), F::from(1.0));
        let outs = [&mut tops[..*rows], &mut shares[..*rows]];
        map_lanes([&totals[..*rows]], outs, |[total]: [F; 1], [top, _]| {
            let is_empty = total.equals(zero);
            [F::select(is_empty, zero, top + total.log()), F::select(is_empty, zero, one / total)]
        });
    }
}
