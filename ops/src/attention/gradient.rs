//! The gradient of attention, from the logarithms of sums (Dao et al., 2022).

use autobwd::{
    Cx, Result,
    op::{DividedMat, LaneOf, Strided, VectorLoops, map_lanes},
};

use super::scores::{KEYS, QueryBlock, ROWS, Scores, Sizes, Tile};
use crate::{
    kernel_helpers::{KernelFloat, nth},
    simd_loops::sum,
};

/// What the gradient is computed from, in addition to the inputs.
#[derive(Clone, Copy)]
pub(super) struct Saved<'a, T> {
    pub(super) out: &'a [T],
    pub(super) log_sum: &'a [T],
    pub(super) dout: &'a [T],
    pub(super) dlog_sum: Option<&'a [T]>,
}

/// The gradients of queries, keys and values; empty ones are not wanted.
pub(super) struct Gradients<'a, T> {
    pub(super) dq: &'a mut [T],
    pub(super) dk: &'a mut [T],
    pub(super) dv: &'a mut [T],
}

impl<'a, T> Gradients<'a, T> {
    /// The gradients, divided into parts for each sequence and head of keys.
    pub(super) fn divided(self, sizes: Sizes) -> [DividedMat<'a, T>; 3] {
        let Sizes { queries, heads, key_heads, depth, width, capacity, .. } = sizes;
        [
            DividedMat { data: self.dq, cols: heads * depth, part: [queries, sizes.group() * depth] },
            DividedMat { data: self.dk, cols: key_heads * depth, part: [capacity, depth] },
            DividedMat { data: self.dv, cols: key_heads * width, part: [capacity, width] },
        ]
    }
}

/// Numbers of scratch memory of a worker: `tiles` tiles, and gradients of the queries of a tile and of all keys.
pub(super) fn scratch_len(sizes: Sizes, tiles: usize) -> usize {
    let Sizes { queries, keys, depth, width, .. } = sizes;
    tiles * sizes.tile() + ROWS.min(queries) * depth + keys * (depth + width)
}

/// Tiles of [`gradients`]: weights, gradients of scores, and tangents of capped scores.
pub(super) fn tiles(is_capped: bool) -> usize {
    if is_capped { 3 } else { 2 }
}

/// Computes the gradients of queries, keys and values.
pub(super) fn gradients<T: KernelFloat>(
    scores: &Scores<'_, T>,
    cx: &Cx,
    saved: Saved<'_, T>,
    gradients: Gradients<'_, T>,
) -> Result<()> {
    let sizes = scores.sizes;
    let Sizes { queries, keys, depth, width, .. } = sizes;
    let tiles = tiles(scores.is_capped());
    cx.scratch(scratch_len(sizes, tiles) * cx.threads(), |scratch| {
        cx.try_zip_submatrices_mut(gradients.divided(sizes), scratch, |[batch, key_head], outs, scratch| {
            let [mut dq, mut dk, mut dv] = outs;
            let (own_tiles, rest) = scratch.split_at_mut(tiles * sizes.tile());
            let (of_queries, of_keys) = rest.split_at_mut(ROWS.min(queries) * depth);
            let (of_keys, of_values) = of_keys.split_at_mut(keys * depth);
            of_keys.fill(T::of(0.0));
            of_values[..keys * width].fill(T::of(0.0));
            for member in 0..sizes.group() {
                let head = key_head * sizes.group() + member;
                for block in sizes.blocks(ROWS, batch * queries..(batch + 1) * queries, head) {
                    let shifts = saved.shifts(scores, block);
                    let block_queries = scores.of_queries(scores.q, block, depth);
                    let douts = scores.of_queries(saved.dout, block, width);
                    of_queries.fill(T::of(0.0));
                    for tile in scores.tiles(block) {
                        let part = score_gradients(scores, cx, tile, saved, &shifts, own_tiles)?;
                        let [weights, dscores] = part.before_cap();
                        if !dq.is_empty() {
                            let keys = scores.of_keys(scores.k, tile, depth);
                            cx.product_strided(of_queries, depth, true, dscores, keys)?;
                        }
                        if !dk.is_empty() {
                            let to = &mut of_keys[tile.key * depth..];
                            cx.product_strided(to, depth, true, dscores.t(), block_queries)?;
                        }
                        if !dv.is_empty() {
                            let to = &mut of_values[tile.key * width..];
                            cx.product_strided(to, width, true, weights.t(), douts)?;
                        }
                    }
                    if !dq.is_empty() {
                        for row in 0..block.rows {
                            let to = &mut dq.row(block.query + row)[member * depth..][..depth];
                            scale_into(to, nth(of_queries, row, depth), scores.scale);
                        }
                    }
                }
            }
            for key in 0..keys {
                if !dk.is_empty() {
                    scale_into(dk.row(key), nth(of_keys, key, depth), scores.scale);
                }
                if !dv.is_empty() {
                    dv.row(key).copy_from_slice(nth(of_values, key, width));
                }
            }
            Ok(())
        })
    })
}

/// Computes the gradient of an additive mask, whose dimensions may be 1 where it broadcasts: the sum of the gradients
/// of scores, with one worker for each matrix of the mask.
pub(super) fn mask_gradient<T: KernelFloat>(
    scores: &Scores<'_, T>,
    cx: &Cx,
    saved: Saved<'_, T>,
    dims: [usize; 4],
    dmask: &mut [T],
) -> Result<()> {
    let sizes = scores.sizes;
    let Sizes { batch, heads, queries, .. } = sizes;
    let [own_batches, own_heads, own_queries, own_keys] = dims;
    let tiles = tiles(scores.is_capped());
    cx.scratch(tiles * sizes.tile() * cx.threads(), |scratch| {
        cx.try_chunks_mut(dmask, own_queries * own_keys, scratch, |part, dmask, scratch| {
            dmask.fill(T::of(0.0));
            let (own_batch, own_head) = (part / own_heads, part % own_heads);
            let batches = if own_batches == 1 { 0..batch } else { own_batch..own_batch + 1 };
            let mut pairs = batches.flat_map(|batch| {
                let heads = if own_heads == 1 { 0..heads } else { own_head..own_head + 1 };
                heads.map(move |head| (batch, head))
            });
            pairs.try_for_each(|(batch, head)| {
                for block in sizes.blocks(ROWS, batch * queries..(batch + 1) * queries, head) {
                    let shifts = saved.shifts(scores, block);
                    for tile in scores.tiles(block) {
                        let ScoreGradients { dscores, .. } =
                            score_gradients(scores, cx, tile, saved, &shifts, scratch)?;
                        for (row, dscores) in dscores.chunks_exact(tile.keys).enumerate() {
                            let to = if own_queries == 1 { 0 } else { block.query + row };
                            let to = &mut dmask[to * own_keys..][..own_keys];
                            match to {
                                [to] => dscores.iter().for_each(|dscore| *to += *dscore),
                                _ => to[tile.key..]
                                    .iter_mut()
                                    .zip(dscores)
                                    .for_each(|(to, dscore)| *to += *dscore),
                            }
                        }
                    }
                }
                Ok(())
            })
        })
    })
}

impl<T: KernelFloat> Saved<'_, T> {
    /// `dlog_sum - Σ dout · out` for queries of one head.
    pub(super) fn shifts(&self, scores: &Scores<'_, T>, block: QueryBlock) -> [T; ROWS] {
        let mut shifts = [T::of(0.0); ROWS];
        T::vectorised(Shifts { saved: *self, scores, block, shifts: &mut shifts });
        shifts
    }
}

struct Shifts<'a, 'b, T> {
    saved: Saved<'a, T>,
    scores: &'a Scores<'b, T>,
    block: QueryBlock,
    shifts: &'a mut [T; ROWS],
}
impl<T: KernelFloat> VectorLoops<T> for Shifts<'_, '_, T> {
    type Output = ();

    #[inline(always)]
    fn run<F: LaneOf<T>>(self) {
        let Shifts { saved: Saved { out, dout, dlog_sum, .. }, scores, block, shifts } = self;
        for (row, shift) in shifts[..block.rows].iter_mut().enumerate() {
            let at = scores.index(block, row);
            let rows = [nth(out, at, scores.sizes.width), nth(dout, at, scores.sizes.width)];
            let mean = sum(rows, |[out, dout]: [F; 2]| out * dout);
            *shift = (dlog_sum.map_or(F::from(0.0), |dlog_sum| F::new(dlog_sum[at])) - mean).get();
        }
    }
}

/// A tile of weights, with the gradients of its scores.
struct ScoreGradients<'a, T> {
    tile: Tile,
    /// With dropout.
    weights: &'a mut [T],
    dscores: &'a mut [T],
    /// The tangents of capped scores.
    tangents: &'a mut [T],
}

fn score_gradients<'a, T: KernelFloat>(
    scores: &Scores<'_, T>,
    cx: &Cx,
    tile: Tile,
    saved: Saved<'_, T>,
    shifts: &[T; ROWS],
    scratch: &'a mut [T],
) -> Result<ScoreGradients<'a, T>> {
    let width = scores.sizes.width;
    let len = tile.block.rows * tile.keys;
    let (weights, rest) = scratch.split_at_mut(len);
    let (dscores, rest) = rest.split_at_mut(len);
    let tangents = if scores.is_capped() { &mut rest[..len] } else { &mut [][..] };
    let douts = scores.of_queries(saved.dout, tile.block, width);
    scores.products(cx, tile, weights)?;
    cx.product_strided(dscores, tile.keys, false, douts, scores.of_keys(scores.v, tile, width).t())?;
    let mut part = ScoreGradients { tile, weights, dscores, tangents };
    T::vectorised(Differentiate { scores, saved, shifts, part: &mut part });
    Ok(part)
}

/// Turns products into weights, and gradients of weights into gradients of scores.
struct Differentiate<'a, 'b, 'c, T> {
    scores: &'a Scores<'b, T>,
    saved: Saved<'a, T>,
    shifts: &'a [T; ROWS],
    part: &'a mut ScoreGradients<'c, T>,
}
impl<T: KernelFloat> VectorLoops<T> for Differentiate<'_, '_, '_, T> {
    type Output = ();

    #[inline(always)]
    fn run<F: LaneOf<T>>(self) {
        let Differentiate { scores, saved, shifts, part } = self;
        let ScoreGradients { tile, weights, dscores, tangents } = part;
        scores.finish::<F>(*tile, weights, tangents);
        let mut factors = [T::of(1.0); KEYS];
        let rows = weights.chunks_exact_mut(tile.keys).zip(dscores.chunks_exact_mut(tile.keys));
        for (row, (weights, dscores)) in rows.enumerate() {
            let log_sum = F::new(saved.log_sum[scores.index(tile.block, row)]);
            let shift = F::new(shifts[row]);
            scores.kept(*tile, row, &mut factors);
            map_lanes([&factors], [weights, dscores], |[factor]: [F; 1], [x, d]| {
                let share = (x - log_sum).exp();
                [share * factor, share * (d * factor + shift)]
            });
        }
    }
}

impl<'a, T: KernelFloat> ScoreGradients<'a, T> {
    /// Weights, and the gradients of scores before they are capped, without their scale.
    fn before_cap(self) -> [Strided<'a, T>; 2] {
        let ScoreGradients { tile, weights, dscores, tangents } = self;
        T::vectorised(Uncap { dscores: &mut *dscores, tangents });
        [weights, dscores].map(|x| tile.matrix(x))
    }
}

/// The derivative of a tangent `t` is `1 - t²`.
struct Uncap<'a, T> {
    dscores: &'a mut [T],
    tangents: &'a [T],
}
impl<T: KernelFloat> VectorLoops<T> for Uncap<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<F: LaneOf<T>>(self) {
        map_lanes([self.tangents], [self.dscores], |[t]: [F; 1], [dscore]| [dscore * (F::from(1.0) - t * t)]);
    }
}

/// `to = scale * from`
pub(super) fn scale_into<T: KernelFloat>(to: &mut [T], from: &[T], scale: T) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to = *from * scale);
}
