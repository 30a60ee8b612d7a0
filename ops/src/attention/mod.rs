//! Scaled dot-product attention with tiled scores: at any time, scores exist for `ROWS` rows of one head only. The
//! composition materialises all scores.

mod positions;

pub(crate) use positions::{masked_attention, rotary_embedding};

use autobwd::{
    Buf, Composed, Composition, Cx, Dims, Error, Expr, Infer, Kernel, Meta, New, Result, Var,
    check::*,
    emit,
    op::{LaneOf, Mat, Strided, VectorLoops, Vectorised, map_lanes, with_float},
    register_op,
    tensor::{Dim, OptionalBuf},
};

use crate::{
    Math,
    kernel_helpers::{KernelFloat, nth},
    math::like,
    matmul::MatmulV2,
    shape::TrilTriu,
    simd_loops::{largest, map_sum, sum},
    softmax::{largest_along, sum_along},
};

/// Rows whose scores exist at a time.
const ROWS: usize = 32;

/// Scaled dot-product attention (Vaswani et al., 2017) of every head: `out = softmax(q · kᵀ / √d) · v`. For the
/// gradient, only `log_sum = ln Σ exp(q · kᵀ / √d)` is saved (Dao et al., 2022).
#[register_op(grad = ScaledDotProductAttentionGrad, infallible)]
pub struct ScaledDotProductAttention<V = Var> {
    /// Queries, `[batch, queries, heads, d]`.
    #[input]
    pub q: V,
    /// Keys, `[batch, keys, heads, d]`.
    #[input]
    pub k: V,
    /// Values, same shape as `k`.
    #[input]
    pub v: V,
    /// Same shape as `q`.
    #[output(like = q)]
    pub out: V,
    /// `[batch, queries, heads]`.
    #[output]
    pub log_sum: V,
    /// Causal mask: query `i` attends to keys `0..=i`; there are then as many keys as queries.
    #[attr(default = false)]
    pub causal: bool,
}
impl Infer for ScaledDotProductAttention<Meta> {
    fn infer(&mut self) -> Result<()> {
        let ScaledDotProductAttention { q, k, v, .. } = &*self;
        q.float()?;
        let [batch, queries, heads, depth] = q.unpack()?;
        k.same_dtype(q)?;
        let [k_batch, keys, k_heads, k_depth] = k.unpack()?;
        let fits = batch.agrees(k_batch) && heads.agrees(k_heads) && depth.agrees(k_depth);
        k.require(fits, || format!("[{batch}, _, {heads}, {depth}] is needed, keys for these queries"))?;
        k.require(keys != Dim::from(0), || "at least one key is needed".into())?;
        v.same_as(k)?;
        if self.causal && !queries.agrees(keys) {
            let text = format!(
                "there are {queries} queries and {keys} keys, but causal attention needs equal numbers"
            );
            return Err(Error::attr("causal", text));
        }
        self.log_sum.set(self.q.dtype, [batch, queries, heads].into_iter().collect::<Dims>());
        Ok(())
    }

    fn flops(&self) -> Dim {
        // Multiplications of queries and keys for two products.
        Dim::from(4) * self.q.dims.numel() * self.k.dims[1]
    }
}
impl Kernel for ScaledDotProductAttention<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        with_float!(self.q, T => {
            let sizes = AttentionSizes::of(&self.q, &self.k, self.causal);
            let (q, k, v) = (self.q.slice::<T>()?, self.k.slice::<T>()?, self.v.slice::<T>()?);
            let (out, log_sum) = (self.out.slice_mut::<T>()?, self.log_sum.slice_mut::<T>()?);
            let outs = [(out, ROWS * sizes.stride), (log_sum, ROWS * sizes.heads)];
            cx.scratch(ROWS * sizes.keys * cx.threads(), |scratch| {
                cx.try_zip_chunks_mut(outs, scratch, |part, [out, log_sum], scratch| {
                    let end = part * ROWS + log_sum.len() / sizes.heads;
                    for block in sizes.blocks(part * ROWS, end) {
                        let at = block.row - part * ROWS;
                        let log_sum = &mut log_sum[at * sizes.heads..][..block.rows * sizes.heads];
                        let scores = &mut scratch[..block.rows * block.keys];
                        for head in 0..sizes.heads {
                            let (q, k, v) = (block.queries(q, head), block.keys(k, head), block.keys(v, head));
                            cx.product_strided(scores, block.keys, false, q, k.t())?;
                            T::vectorised(AttentionLoops { block, scores: &mut *scores, log_sum: &mut *log_sum, head });
                            let scores = block.scores(scores);
                            let out = &mut out[at * sizes.stride + head * sizes.depth..];
                            cx.product_strided(out, sizes.stride, false, scores, v)?;
                        }
                    }
                    Ok(())
                })
            })
        })
    }

    fn scratch_bytes(&self, workers: usize) -> usize {
        ROWS * AttentionSizes::of(&self.q, &self.k, self.causal).keys * workers * self.q.dtype().size()
    }
}
impl Composition for ScaledDotProductAttention<Expr> {
    fn compose(&mut self) {
        const HEADS: [i32; 4] = [0, 2, 1, 3];
        let depth = sum_along(&like(&self.q, 1.0), -1);
        let q = (&self.q / &depth.sqrt()).transpose(&HEADS);
        let (k, v) = (self.k.transpose(&HEADS), self.v.transpose(&HEADS));
        let mut scores =
            emit(MatmulV2 { x: q.into(), y: k.into(), out: New, trans_x: false, trans_y: true }).out;
        if self.causal {
            // Masked scores get -1e30, whose exponential is 0.
            let unseen = (seen(&like(&scores, 1.0)) - 1.0) * 1e30;
            scores = seen(&scores) + unseen;
        }
        let largest = largest_along(&scores, -1).stop_gradient();
        let exp = (&scores - &largest).exp();
        let sum = sum_along(&exp, -1);
        self.out = (&exp / &sum).matmul(&v).transpose(&HEADS);
        self.log_sum = (sum.log() + largest).squeeze(&[-1]).transpose(&[0, 2, 1]);
    }
}

/// 1 where the key comes no later than the query, else 0.
fn seen(x: &Expr) -> Expr {
    emit(TrilTriu { x: x.into(), out: New, diagonal: 0, lower: true }).out
}
autobwd::samples!(
    ScaledDotProductAttention,
    [
        attention(uniform([2, 3, 4, 5]), [uniform([2, 6, 4, 5]), uniform([2, 6, 4, 5])], false),
        attention(uniform([2, 5, 3, 4]), [uniform([2, 5, 3, 4]), uniform([2, 5, 3, 4])], true),
        // Masked scores with an infinite exponential.
        attention(
            given([1, 2, 1, 1], [20.0, 0.5]),
            [given([1, 2, 1, 1], [0.5, 40.0]), uniform([1, 2, 1, 1])],
            true
        ),
        // Several blocks, the last one partial.
        attention(uniform([2, 34, 1, 1]), [uniform([2, 34, 1, 1]), uniform([2, 34, 1, 1])], true),
        attention(uniform([1, 35, 2, 1]), [uniform([1, 3, 2, 1]), uniform([1, 3, 2, 1])], false),
        attention(between(-9.0, 9.0, [1, 3, 1, 4]), [uniform([1, 20, 1, 4]), uniform([1, 20, 1, 4])], false),
        attention(uniform([0, 3, 2, 4]), [uniform([0, 5, 2, 4]), uniform([0, 5, 2, 4])], false),
        attention(uniform([2, 0, 2, 4]), [uniform([2, 5, 2, 4]), uniform([2, 5, 2, 4])], false),
        attention(uniform([2, 3, 2, 0]), [uniform([2, 5, 2, 0]), uniform([2, 5, 2, 0])], false),
        attention(uniform([2, 3, 4, 5]), [uniform([2, 6, 4, 6]), uniform([2, 6, 4, 6])], false)
            .fails("`K`: [2, _, 4, 5] is needed, keys for these queries"),
        attention(uniform([2, 3, 4, 5]), [uniform([2, 6, 4, 5]), uniform([2, 7, 4, 5])], false)
            .fails("`V`: shape [2, 7, 4, 5] does not match [2, 6, 4, 5] of `K`"),
        attention(uniform([2, 3, 4, 5]), [uniform([2, 6, 4, 5]), uniform([2, 6, 4, 5])], true)
            .fails("attribute `causal`: there are 3 queries and 6 keys"),
        attention(uniform([2, 3, 4, 5]), [uniform([2, 0, 4, 5]), uniform([2, 0, 4, 5])], false)
            .fails("`K`: at least one key is needed"),
    ]
);

fn attention(q: Draw, [k, v]: [Draw; 2], causal: bool) -> ScaledDotProductAttention<Draw> {
    ScaledDotProductAttention { q, k, v, out: out(), log_sum: out(), causal }
}

/// With `p = exp(q · kᵀ / √d - log_sum)` and `ds = p * (dout · vᵀ - Σ dout * out + dlog_sum) / √d`: `dq = ds · k`,
/// `dk = dsᵀ · q`, `dv = pᵀ · dout`.
#[register_op(grad_of = ScaledDotProductAttention, grad = Composed, inferred, infallible)]
pub struct ScaledDotProductAttentionGrad<V = Var> {
    pub q: V,
    pub k: V,
    pub v: V,
    pub out: V,
    pub log_sum: V,
    pub dout: V,
    pub dlog_sum: Option<V>,
    #[output]
    pub dq: Option<V>,
    #[output]
    pub dk: Option<V>,
    #[output]
    pub dv: Option<V>,
    pub causal: bool,
}
impl Kernel for ScaledDotProductAttentionGrad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        with_float!(self.q, T => {
            let sizes = AttentionSizes::of(&self.q, &self.k, self.causal);
            let (q, k, v) = (self.q.slice::<T>()?, self.k.slice::<T>()?, self.v.slice::<T>()?);
            let (out, dout) = (self.out.slice::<T>()?, self.dout.slice::<T>()?);
            let log_sum = self.log_sum.slice::<T>()?;
            let dlog_sum = self.dlog_sum.slice()?;
            let (dq, dk, dv) = (self.dq.slice_mut::<T>()?, self.dk.slice_mut()?, self.dv.slice_mut()?);
            let of_keys = sizes.keys * sizes.stride;
            let outs = [
                (dq.unwrap_or_default(), sizes.queries * sizes.stride),
                (dk.unwrap_or_default(), of_keys),
                (dv.unwrap_or_default(), of_keys),
            ];
            cx.scratch((2 * sizes.keys + sizes.heads) * ROWS * cx.threads(), |scratch| {
                cx.try_zip_chunks_mut(outs, scratch, |batch, [dq, dk, dv], scratch| {
                    dk.fill(T::of(0.0));
                    dv.fill(T::of(0.0));
                    let (shifts, scratch) = scratch.split_at_mut(ROWS * sizes.heads);
                    let (scores, dscores) = scratch.split_at_mut(scratch.len() / 2);
                    let first = batch * sizes.queries;
                    for block in sizes.blocks(first, first + sizes.queries) {
                        let len = block.rows * block.keys;
                        let (scores, dscores) = (&mut scores[..len], &mut dscores[..len]);
                        T::vectorised(Shifts { block, dlog_sum, out, dout, shifts: &mut *shifts });
                        for head in 0..sizes.heads {
                            let (queries, keys) = (block.queries(q, head), block.keys(k, head));
                            let douts = block.queries(dout, head);
                            cx.product_strided(scores, block.keys, false, queries, keys.t())?;
                            cx.product_strided(dscores, block.keys, false, douts, block.keys(v, head).t())?;
                            T::vectorised(AttentionGradLoops {
                                block,
                                head,
                                scores: &mut *scores,
                                dscores: &mut *dscores,
                                log_sum,
                                shifts: &*shifts,
                            });
                            let (scores, dscores) = (block.scores(scores), block.scores(dscores));
                            let (at, stride) = (head * sizes.depth, sizes.stride);
                            if !dq.is_empty() {
                                let dq = &mut dq[(block.row - first) * stride + at..];
                                cx.product_strided(dq, stride, false, dscores, keys)?;
                            }
                            if !dk.is_empty() {
                                cx.product_strided(&mut dk[at..], stride, true, dscores.t(), queries)?;
                            }
                            if !dv.is_empty() {
                                cx.product_strided(&mut dv[at..], stride, true, scores.t(), douts)?;
                            }
                        }
                    }
                    Ok(())
                })
            })
        })
    }

    fn scratch_bytes(&self, workers: usize) -> usize {
        let sizes = AttentionSizes::of(&self.q, &self.k, self.causal);
        (2 * sizes.keys + sizes.heads) * ROWS * workers * self.q.dtype().size()
    }
}

#[derive(Clone, Copy)]
struct AttentionSizes {
    queries: usize,
    keys: usize,
    heads: usize,
    depth: usize,
    /// Elements between consecutive rows of a head.
    stride: usize,
    causal: bool,
}

impl AttentionSizes {
    fn of(q: &Buf<'_>, k: &Buf<'_>, causal: bool) -> AttentionSizes {
        let (q, k) = (q.dims(), k.dims());
        let (heads, depth) = (q[2], q[3]);
        AttentionSizes { queries: q[1], keys: k[1], heads, depth, stride: heads * depth, causal }
    }

    /// Splits the rows from `start` to `end`, counted through all sequences, into blocks within one sequence.
    fn blocks(self, start: usize, end: usize) -> impl Iterator<Item = QueryBlock> {
        let mut row = start;
        std::iter::from_fn(move || {
            let (batch, position) = (row.checked_div(self.queries)?, row.checked_rem(self.queries)?);
            let rows = ROWS.min(end - row).min(self.queries - position);
            let keys = if self.causal { position + rows } else { self.keys };
            let block = QueryBlock { sizes: self, batch, row, position, rows, keys };
            row += rows;
            (rows > 0).then_some(block)
        })
    }
}

/// Some query rows of one sequence, and the keys that they attend to.
#[derive(Clone, Copy)]
struct QueryBlock {
    sizes: AttentionSizes,
    batch: usize,
    /// The first row, counted through all sequences.
    row: usize,
    /// Its position in its sequence.
    position: usize,
    rows: usize,
    keys: usize,
}

impl QueryBlock {
    fn queries<T>(self, all: &[T], head: usize) -> Strided<'_, T> {
        self.rows_of(all, self.row, self.rows, head)
    }

    fn keys<T>(self, all: &[T], head: usize) -> Strided<'_, T> {
        self.rows_of(all, self.batch * self.sizes.keys, self.keys, head)
    }

    fn rows_of<T>(self, all: &[T], first: usize, rows: usize, head: usize) -> Strided<'_, T> {
        let AttentionSizes { depth, stride, .. } = self.sizes;
        let data = &all[first * stride + head * depth..];
        Strided { mat: Mat { data, rows, cols: depth, transposed: false }, stride }
    }

    fn scores<T>(self, data: &[T]) -> Strided<'_, T> {
        Mat { data, rows: self.rows, cols: self.keys, transposed: false }.into()
    }

    /// The factor of the scores.
    fn scale(self) -> f64 {
        1.0 / (self.sizes.depth.max(1) as f64).sqrt()
    }

    /// Zeroes the weights of masked keys.
    #[inline(always)]
    fn hide<T: KernelFloat>(self, scores: &mut [T]) {
        for (row, scores) in scores.chunks_exact_mut(self.keys).enumerate().filter(|_| self.sizes.causal) {
            scores[self.position + row + 1..].fill(T::neg_infinity());
        }
    }
}

/// Turns scores into attention weights and computes the logarithms of their sums. Each step goes through all rows
/// before the next step, which would stall within a row.
struct AttentionLoops<'a, T> {
    block: QueryBlock,
    scores: &'a mut [T],
    /// For all heads.
    log_sum: &'a mut [T],
    head: usize,
}
impl<T: KernelFloat> VectorLoops<T> for AttentionLoops<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<F: LaneOf<T>>(self) {
        let AttentionLoops { block, scores, log_sum, head } = self;
        let scale = F::from(block.scale());
        let (tops, totals) = (&mut [T::of(0.0); ROWS][..block.rows], &mut [T::of(0.0); ROWS][..block.rows]);
        block.hide(scores);
        for (scores, top) in scores.chunks_exact(block.keys).zip(&mut *tops) {
            *top = (largest::<T, F>(scores) * scale).get();
        }
        for ((scores, top), total) in scores.chunks_exact_mut(block.keys).zip(&*tops).zip(&mut *totals) {
            let top = F::new(*top);
            *total = map_sum(scores, |x: F| x.mul_add(scale, -top).exp()).get();
        }
        // Maxima become logarithms, totals become the factors of the scores.
        map_lanes([], [&mut *tops, &mut *totals], |[], [top, total]: [F; 2]| {
            [top + total.log(), F::from(1.0) / total]
        });
        for (row, (scores, share)) in scores.chunks_exact_mut(block.keys).zip(totals).enumerate() {
            let share = F::new(*share);
            map_lanes([], [scores], |[], [x]: [F; 1]| [x * share]);
            log_sum[row * block.sizes.heads + head] = tops[row];
        }
    }
}

/// `dlog_sum - Σ dout * out` for all heads, in memory order.
struct Shifts<'a, T> {
    block: QueryBlock,
    dlog_sum: Option<&'a [T]>,
    out: &'a [T],
    dout: &'a [T],
    shifts: &'a mut [T],
}
impl<T: KernelFloat> VectorLoops<T> for Shifts<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<F: LaneOf<T>>(self) {
        let AttentionSizes { heads, depth, .. } = self.block.sizes;
        for (i, shift) in self.shifts[..self.block.rows * heads].iter_mut().enumerate() {
            let at = self.block.row * heads + i;
            let mean =
                sum([nth(self.out, at, depth), nth(self.dout, at, depth)], |[out, dout]: [F; 2]| out * dout);
            *shift = (self.dlog_sum.map_or(F::from(0.0), |dlog_sum| F::new(dlog_sum[at])) - mean).get();
        }
    }
}

/// Turns scores into attention weights, and gradients of the weights into gradients of the scores.
struct AttentionGradLoops<'a, T> {
    block: QueryBlock,
    head: usize,
    scores: &'a mut [T],
    dscores: &'a mut [T],
    /// For all rows and heads.
    log_sum: &'a [T],
    /// For the rows of the block, all heads.
    shifts: &'a [T],
}
impl<T: KernelFloat> VectorLoops<T> for AttentionGradLoops<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<F: LaneOf<T>>(self) {
        let AttentionGradLoops { block, head, scores, dscores, log_sum, shifts } = self;
        let scale = F::from(block.scale());
        block.hide(scores);
        let rows = scores.chunks_exact_mut(block.keys).zip(dscores.chunks_exact_mut(block.keys));
        for (row, (scores, dscores)) in rows.enumerate() {
            let at = row * block.sizes.heads + head;
            let log_sum = F::new(log_sum[block.row * block.sizes.heads + at]);
            let shift = F::new(shifts[at]);
            map_lanes([], [scores, dscores], |[], [x, d]: [F; 2]| {
                let share = x.mul_add(scale, -log_sum).exp();
                [share, share * (d + shift) * scale]
            });
        }
    }
}
