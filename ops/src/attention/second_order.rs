//! The gradient of the gradient of attention, a tile at a time, in two passes over the keys of a row.

use autobwd::{
    Cx, Result,
    op::{DividedMat, LaneOf, Strided, VectorLoops, map_fold_lanes, map_lanes},
};

use super::{
    gradient::{Gradients, Saved, scale_into, scratch_len},
    scores::{KEYS, ROWS, Scores, Sizes, Tile},
};
use crate::kernel_helpers::{KernelFloat, nth, wide};

/// The gradients that arrive at the gradients of queries, keys and values.
#[derive(Clone, Copy)]
pub(super) struct Arriving<'a, T> {
    pub(super) ddq: Option<&'a [T]>,
    pub(super) ddk: Option<&'a [T]>,
    pub(super) ddv: Option<&'a [T]>,
}

/// The gradients of `dout` and `dlog_sum`; empty ones are not wanted.
pub(super) struct OfIncoming<'a, T> {
    pub(super) ddout: &'a mut [T],
    pub(super) ddlog_sum: &'a mut [T],
}

/// Tiles of [`gradients`].
const TILES: usize = 5;

/// Numbers of scratch memory of a worker.
pub(super) fn second_order_scratch_len(sizes: Sizes) -> usize {
    scratch_len(sizes, TILES) + ROWS.min(sizes.queries) * sizes.width
}

/// Computes the gradients.
pub(super) fn second_order<T: KernelFloat>(
    scores: &Scores<'_, T>,
    cx: &Cx,
    saved: Saved<'_, T>,
    arriving: Arriving<'_, T>,
    gradients: Gradients<'_, T>,
    of_incoming: OfIncoming<'_, T>,
) -> Result<()> {
    let sizes = scores.sizes;
    let Sizes { queries, keys, heads, depth, width, .. } = sizes;
    let [dq, dk, dv] = gradients.divided(sizes);
    let OfIncoming { ddout, ddlog_sum } = of_incoming;
    let outs = [
        dq,
        dk,
        dv,
        DividedMat { data: ddout, cols: heads * width, part: [queries, sizes.group() * width] },
        DividedMat { data: ddlog_sum, cols: heads, part: [queries, sizes.group()] },
    ];
    cx.scratch(second_order_scratch_len(sizes) * cx.threads(), |scratch| {
        cx.try_zip_submatrices_mut(outs, scratch, |[batch, key_head], outs, scratch| {
            let [mut dq, mut dk, mut dv, mut ddout, mut ddlog_sum] = outs;
            let (tiles, rest) = scratch.split_at_mut(TILES * sizes.tile());
            let (of_queries, rest) = rest.split_at_mut(ROWS.min(queries) * depth);
            let (of_douts, of_keys) = rest.split_at_mut(ROWS.min(queries) * width);
            let (of_keys, of_values) = of_keys.split_at_mut(keys * depth);
            of_keys.fill(T::of(0.0));
            of_values[..keys * width].fill(T::of(0.0));
            for member in 0..sizes.group() {
                let head = key_head * sizes.group() + member;
                for block in sizes.blocks(ROWS, batch * queries..(batch + 1) * queries, head) {
                    let mut rows = RowSums::of(saved.shifts(scores, block));
                    for tile in scores.tiles(block) {
                        let part = SecondOrderTile::of(scores, cx, tile, saved, arriving, tiles)?;
                        T::vectorised(Sum { scores, saved, rows: &mut rows, part });
                    }
                    of_queries.fill(T::of(0.0));
                    of_douts.fill(T::of(0.0));
                    let block_queries = scores.of_queries(scores.q, block, depth);
                    let douts = scores.of_queries(saved.dout, block, width);
                    for tile in scores.tiles(block) {
                        let mut part = SecondOrderTile::of(scores, cx, tile, saved, arriving, tiles)?;
                        T::vectorised(Differentiate { scores, saved, rows: &rows, part: &mut part });
                        let [weights, dweights, dscores, scores_twice] = part.matrices();
                        let add = |to: &mut [T], cols, x: Strided<'_, T>, y| {
                            cx.product_strided(to, cols, true, x, y)
                        };
                        let (own_keys, own_values) =
                            (&mut of_keys[tile.key * depth..], &mut of_values[tile.key * width..]);
                        add(of_queries, depth, dscores, scores.of_keys(scores.k, tile, depth))?;
                        add(own_keys, depth, dscores.t(), block_queries)?;
                        if let Some(ddk) = arriving.ddk {
                            add(of_queries, depth, scores_twice, scores.of_keys(ddk, tile, depth))?;
                        }
                        if let Some(ddq) = arriving.ddq {
                            add(own_keys, depth, scores_twice.t(), scores.of_queries(ddq, block, depth))?;
                        }
                        add(of_douts, width, dweights, scores.of_keys(scores.v, tile, width))?;
                        if let Some(ddv) = arriving.ddv {
                            add(of_douts, width, weights, scores.of_keys(ddv, tile, width))?;
                        }
                        add(own_values, width, dweights.t(), douts)?;
                    }
                    for row in 0..block.rows {
                        let query = block.query + row;
                        if !dq.is_empty() {
                            let to = &mut dq.row(query)[member * depth..][..depth];
                            scale_into(to, nth(of_queries, row, depth), scores.scale);
                        }
                        if !ddout.is_empty() {
                            let to = &mut ddout.row(query)[member * width..][..width];
                            to.copy_from_slice(nth(of_douts, row, width));
                        }
                        if !ddlog_sum.is_empty() {
                            ddlog_sum.row(query)[member] = rows.means[row];
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

/// Sums over the keys of each row, with `e` the gradient of `dscores`.
struct RowSums<T> {
    /// `dlog_sum - Σ dout · out`
    shifts: [T; ROWS],
    /// `Σ share · e`
    means: [T; ROWS],
    /// `Σ share · (e · (dshare + shift) + ddv · dout)`
    totals: [T; ROWS],
}

impl<T: KernelFloat> RowSums<T> {
    fn of(shifts: [T; ROWS]) -> RowSums<T> {
        RowSums { shifts, means: [T::of(0.0); ROWS], totals: [T::of(0.0); ROWS] }
    }
}

/// Products for a tile, in scratch memory.
struct SecondOrderTile<'a, T> {
    tile: Tile,
    /// `q · kᵀ`; then the weights.
    scores: &'a mut [T],
    /// `dout · vᵀ`; then the gradient of this product.
    dweights: &'a mut [T],
    /// `scale * (ddq · kᵀ + q · ddkᵀ)`; then the gradient of the scores.
    of_dscores: &'a mut [T],
    /// `dout · ddvᵀ`; then `dscores`.
    of_weights: &'a mut [T],
    tangents: &'a mut [T],
}

impl<'a, T: KernelFloat> SecondOrderTile<'a, T> {
    fn of(
        scores: &Scores<'_, T>,
        cx: &Cx,
        tile: Tile,
        saved: Saved<'_, T>,
        arriving: Arriving<'_, T>,
        scratch: &'a mut [T],
    ) -> Result<SecondOrderTile<'a, T>> {
        let Sizes { depth, width, .. } = scores.sizes;
        let mut tiles = scratch.chunks_exact_mut(tile.block.rows * tile.keys);
        let mut next = || tiles.next().unwrap_or_default();
        let (products, dweights, of_dscores, of_weights, tangents) = (next(), next(), next(), next(), next());
        let queries = scores.of_queries(scores.q, tile.block, depth);
        let douts = scores.of_queries(saved.dout, tile.block, width);
        let keys = scores.of_keys(scores.k, tile, depth);
        let multiply =
            |to: &mut [T], how, x, y: Strided<'_, T>| cx.product_scaled(to, tile.keys, how, x, y.t());
        let (set, add_scaled) = ((false, T::of(1.0)), (true, scores.scale));
        scores.products(cx, tile, products)?;
        multiply(dweights, set, douts, scores.of_keys(scores.v, tile, width))?;
        of_dscores.fill(T::of(0.0));
        if let Some(ddq) = arriving.ddq {
            multiply(of_dscores, add_scaled, scores.of_queries(ddq, tile.block, depth), keys)?;
        }
        if let Some(ddk) = arriving.ddk {
            multiply(of_dscores, add_scaled, queries, scores.of_keys(ddk, tile, depth))?;
        }
        match arriving.ddv {
            Some(ddv) => multiply(of_weights, set, douts, scores.of_keys(ddv, tile, width))?,
            None => of_weights.fill(T::of(0.0)),
        }
        let tangents = if scores.is_capped() { tangents } else { &mut [] };
        Ok(SecondOrderTile { tile, scores: products, dweights, of_dscores, of_weights, tangents })
    }

    /// Turns products into scores, and the gradients of `dscores` into what they are without a cap.
    #[inline(always)]
    fn finish<F: LaneOf<T>>(&mut self, scores: &Scores<'_, T>) {
        scores.finish::<F>(self.tile, self.scores, self.tangents);
        // Without a cap, there are no tangents.
        map_lanes(
            [&*self.tangents],
            [&mut *self.of_dscores],
            |[t]: [F; 1], [e]| [e * (F::from(1.0) - t * t)],
        );
    }

    fn matrices(&self) -> [Strided<'_, T>; 4] {
        [&*self.scores, &*self.dweights, &*self.of_dscores, &*self.of_weights].map(|x| self.tile.matrix(x))
    }
}

/// The first pass.
struct Sum<'a, 'b, T> {
    scores: &'a Scores<'b, T>,
    saved: Saved<'a, T>,
    rows: &'a mut RowSums<T>,
    part: SecondOrderTile<'a, T>,
}
impl<T: KernelFloat> VectorLoops<T> for Sum<'_, '_, T> {
    type Output = ();

    #[inline(always)]
    fn run<F: LaneOf<T>>(self) {
        let Sum { scores, saved, rows, mut part } = self;
        part.finish::<F>(scores);
        let (tile, keys) = (part.tile, part.tile.keys);
        let mut factors = [T::of(1.0); KEYS];
        for row in 0..tile.block.rows {
            let (log_sum, shift) =
                (F::new(saved.log_sum[scores.index(tile.block, row)]), F::new(rows.shifts[row]));
            scores.kept(tile, row, &mut factors);
            let inputs = [
                &factors[..keys],
                nth(part.scores, row, keys),
                nth(part.dweights, row, keys),
                nth(part.of_dscores, row, keys),
                nth(part.of_weights, row, keys),
            ];
            let start = [F::from(0.0); 2];
            let add = |[mean, total]: [F; 2], [factor, x, d, e, c]: [F; 5], []: [F; 0]| {
                let share = (x - log_sum).exp();
                ([mean + share * e, total + share * (e * (d * factor + shift) + c * factor)], [])
            };
            let [mean, total] = map_fold_lanes(inputs, [], start, add, |[a, b], [c, d]| [a + c, b + d]);
            rows.means[row] += mean.get();
            rows.totals[row] += total.get();
        }
    }
}

/// The second pass: turns products into weights, and gradients of `dout · vᵀ`, of `q · kᵀ`, and `dscores`.
struct Differentiate<'a, 'b, 'c, T> {
    scores: &'a Scores<'b, T>,
    saved: Saved<'a, T>,
    rows: &'a RowSums<T>,
    part: &'a mut SecondOrderTile<'c, T>,
}
impl<T: KernelFloat> VectorLoops<T> for Differentiate<'_, '_, '_, T> {
    type Output = ();

    #[inline(always)]
    fn run<F: LaneOf<T>>(self) {
        let Differentiate { scores, saved, rows, part } = self;
        part.finish::<F>(scores);
        let (tile, keys) = (part.tile, part.tile.keys);
        let (zero, one) = (F::from(0.0), F::from(1.0));
        let mut factors = [T::of(1.0); KEYS];
        // Without a cap, tangents are 0.
        let (flat, bend) =
            ([T::of(0.0); KEYS], if scores.is_capped() { 2.0 / wide(scores.softcap) } else { 0.0 });
        let bend = F::from(bend);
        for row in 0..tile.block.rows {
            let (log_sum, shift) =
                (F::new(saved.log_sum[scores.index(tile.block, row)]), F::new(rows.shifts[row]));
            let dlog_sum =
                saved.dlog_sum.map_or(zero, |dlog_sum| F::new(dlog_sum[scores.index(tile.block, row)]));
            let mean = F::new(rows.means[row]);
            // `Σ share · dshare` is `dlog_sum - shift`.
            let total = F::new(rows.totals[row]) - mean * (dlog_sum - shift);
            scores.kept(tile, row, &mut factors);
            let tangents = if scores.is_capped() { nth(part.tangents, row, keys) } else { &flat[..keys] };
            let at = row * keys..(row + 1) * keys;
            let outs = [
                &mut part.scores[at.clone()],
                &mut part.dweights[at.clone()],
                &mut part.of_dscores[at.clone()],
                &mut part.of_weights[at],
            ];
            map_lanes([&factors[..keys], tangents], outs, |[factor, t]: [F; 2], [x, d, e, c]| {
                let (share, rise) = ((x - log_sum).exp(), one - t * t);
                let dshare = d * factor;
                let dscore = share * (dshare + shift);
                let of_share = e * (dshare + shift) - mean * dshare + c * factor;
                let of_score = share * (of_share - total) * rise - e * dscore * t * bend;
                [share * factor, share * (e - mean) * factor, of_score, dscore * rise]
            });
        }
    }
}
