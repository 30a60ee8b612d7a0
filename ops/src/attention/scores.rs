//! Scores of attention, a tile at a time: some queries and keys of one head.

use std::ops::Range;

use autobwd::{
    Buf, Cx, DType, Result,
    op::{LaneOf, Mat, Strided, map_lanes},
    tensor::Bool,
};

use super::AttentionAttrs;
use crate::{
    kernel_helpers::{KernelFloat, whole_number, wide},
    random::{rng, unit},
};

/// Queries of a tile.
pub(super) const ROWS: usize = 128;
/// Queries of a tile of a short causal sequence in the forward pass: a larger tile would hide up to half of its scores.
const SHORT_ROWS: usize = 32;
/// The most keys of a tile.
pub(super) const KEYS: usize = 256;
/// Keys that sums go through at a time: hidden ones before the first tile may be left out in such runs.
const RUN: usize = 16;

/// Sizes of queries, keys and values.
#[derive(Clone, Copy)]
pub(super) struct Sizes {
    pub(super) batch: usize,
    pub(super) queries: usize,
    pub(super) keys: usize,
    pub(super) heads: usize,
    pub(super) key_heads: usize,
    /// Columns of queries and keys.
    pub(super) depth: usize,
    /// Columns of values.
    pub(super) width: usize,
    /// Rows that `k` and `v` have memory for; those after `keys` are unused.
    pub(super) capacity: usize,
}

impl Sizes {
    pub(super) fn of(q: &Buf<'_>, k: &Buf<'_>, v: &Buf<'_>) -> Sizes {
        let (q, k, v) = (q.dims(), k.dims(), v.dims());
        Sizes {
            batch: q[0],
            queries: q[1],
            keys: k[1],
            heads: q[2],
            key_heads: k[2],
            depth: q[3],
            width: v[3],
            capacity: k[1],
        }
    }

    /// Heads of queries that share a head of keys.
    pub(super) fn group(self) -> usize {
        self.heads.checked_div(self.key_heads).unwrap_or(0)
    }

    /// The most scores of a tile.
    pub(super) fn tile(self) -> usize {
        ROWS.min(self.queries) * KEYS.min(self.keys)
    }

    /// The rows, counted through all sequences, in blocks of at most `most` rows of one sequence.
    pub(super) fn blocks(
        self,
        most: usize,
        rows: Range<usize>,
        head: usize,
    ) -> impl Iterator<Item = QueryBlock> {
        let Range { start: mut row, end } = rows;
        std::iter::from_fn(move || {
            let (batch, query) = (row.checked_div(self.queries)?, row.checked_rem(self.queries)?);
            let rows = most.min(end - row).min(self.queries - query);
            row += rows;
            (rows > 0).then_some(QueryBlock { batch, head, query, rows })
        })
    }
}

/// Some queries of one head of one sequence.
#[derive(Clone, Copy)]
pub(super) struct QueryBlock {
    pub(super) batch: usize,
    pub(super) head: usize,
    /// The first one.
    pub(super) query: usize,
    pub(super) rows: usize,
}

/// These queries with some keys.
#[derive(Clone, Copy)]
pub(super) struct Tile {
    pub(super) block: QueryBlock,
    /// The first key.
    pub(super) key: usize,
    pub(super) keys: usize,
}

impl Tile {
    /// The scores of the tile, or other numbers for them.
    pub(super) fn matrix<T>(self, data: &[T]) -> Strided<'_, T> {
        Mat { data, rows: self.block.rows, cols: self.keys, transposed: false }.into()
    }
}

/// What is added to scores, with distances of batches, heads, queries and keys, 0 along broadcast dimensions.
enum Mask<'a, T> {
    Keep(&'a [Bool], [usize; 4]),
    Add(&'a [T], [usize; 4]),
}

/// Random factors of weights.
struct Dropout<T> {
    seed: i64,
    probability: f64,
    /// The factor of weights that are kept.
    factor: T,
}

/// How the scores of an operator are computed.
pub(super) struct Scores<'a, T> {
    pub(super) sizes: Sizes,
    pub(super) q: &'a [T],
    pub(super) k: &'a [T],
    pub(super) v: &'a [T],
    pub(super) scale: T,
    /// 0 for none.
    pub(super) softcap: T,
    causal: bool,
    window: Option<i64>,
    mask: Option<Mask<'a, T>>,
    documents: Option<&'a [i64]>,
    positions: Option<&'a [i64]>,
    dropout: Option<Dropout<T>>,
}

impl<'a, T: KernelFloat> Scores<'a, T> {
    pub(super) fn of(
        [q, k, v]: [&'a Buf<'_>; 3],
        [mask, documents, positions, seed]: [Option<&'a Buf<'_>>; 4],
        attrs: &AttentionAttrs,
    ) -> Result<Scores<'a, T>> {
        let sizes = Sizes::of(q, k, v);
        let mask = match mask {
            None => None,
            Some(mask) if mask.dtype() == DType::Bool => {
                Some(Mask::Keep(mask.slice()?, broadcast_strides(mask.dims())))
            }
            Some(mask) => Some(Mask::Add(mask.slice()?, broadcast_strides(mask.dims()))),
        };
        let probability = f64::from(attrs.dropout_prob);
        let dropout = if probability > 0.0 {
            let seed = seed.map_or(Ok(attrs.seed.into()), whole_number)?;
            Some(Dropout { seed, probability, factor: T::of(attrs.kept_factor()) })
        } else {
            None
        };
        Ok(Scores {
            sizes,
            q: q.slice()?,
            k: k.slice()?,
            v: v.slice()?,
            scale: T::of(attrs.scale_of(sizes.depth)),
            softcap: T::of(attrs.softcap.into()),
            causal: attrs.causal,
            window: (attrs.window >= 0).then_some(attrs.window.into()),
            mask,
            documents: documents.map(Buf::slice).transpose()?,
            positions: positions.map(Buf::slice).transpose()?,
            dropout,
        })
    }

    /// The blocks of the forward pass, whose sums over keys are the same for blocks of any size.
    pub(super) fn forward_blocks(&self, rows: Range<usize>, head: usize) -> impl Iterator<Item = QueryBlock> {
        let is_short = self.causal && self.sizes.queries.max(self.sizes.keys) <= ROWS;
        self.sizes.blocks(if is_short { SHORT_ROWS } else { ROWS }, rows, head)
    }

    /// Whether scores are capped.
    pub(super) fn is_capped(&self) -> bool {
        self.softcap > T::of(0.0)
    }

    /// Whether weights are dropped.
    pub(super) fn drops(&self) -> bool {
        self.dropout.is_some()
    }

    /// The rows of queries, or of another tensor with their rows and heads, and `cols` columns.
    pub(super) fn of_queries<'b>(&self, x: &'b [T], block: QueryBlock, cols: usize) -> Strided<'b, T> {
        let stride = self.sizes.heads * cols;
        let first = (block.batch * self.sizes.queries + block.query) * stride + block.head * cols;
        Strided { mat: Mat { data: &x[first..], rows: block.rows, cols, transposed: false }, stride }
    }

    /// The rows of keys or values, or of another tensor with their rows and heads.
    pub(super) fn of_keys<'b>(&self, x: &'b [T], tile: Tile, cols: usize) -> Strided<'b, T> {
        let Sizes { key_heads, capacity, .. } = self.sizes;
        let (head, stride) = (tile.block.head / self.sizes.group(), key_heads * cols);
        let first = (tile.block.batch * capacity + tile.key) * stride + head * cols;
        Strided { mat: Mat { data: &x[first..], rows: tile.keys, cols, transposed: false }, stride }
    }

    /// The number of a query through all sequences and heads.
    pub(super) fn index(&self, block: QueryBlock, row: usize) -> usize {
        (block.batch * self.sizes.queries + block.query + row) * self.sizes.heads + block.head
    }

    /// The position of a query among the keys: its own, or the last query is at the last key.
    fn position(&self, batch: usize, query: usize) -> i64 {
        let Sizes { queries, keys, .. } = self.sizes;
        match self.positions {
            Some(positions) => positions[batch * queries + query],
            None => (query + keys) as i64 - queries as i64,
        }
    }

    /// The document of a query, if it has a position among the keys.
    fn document(&self, documents: &[i64], batch: usize, query: usize) -> Option<i64> {
        let position = usize::try_from(self.position(batch, query)).ok()?;
        documents[batch * self.sizes.keys..][..self.sizes.keys].get(position).copied()
    }

    /// The keys that neither the causal mask nor the window hides from a query.
    fn seen(&self, batch: usize, query: usize) -> Range<usize> {
        let keys = self.sizes.keys;
        if !self.causal && self.window.is_none() {
            return 0..keys;
        }
        let (position, window) = (self.position(batch, query), self.window.unwrap_or(i64::MAX));
        let after = if self.causal { 0 } else { window };
        let among_keys = |position: i64| position.clamp(0, keys as i64) as usize;
        let first = among_keys(position.saturating_sub(window));
        let end = among_keys(position.saturating_add(after).saturating_add(1));
        first.min(end)..end
    }

    /// The tiles of some queries, without those whose keys are all hidden by position or document.
    pub(super) fn tiles(&self, block: QueryBlock) -> impl Iterator<Item = Tile> {
        let QueryBlock { batch, query, rows, .. } = block;
        let queries = query..query + rows;
        let ranges = queries.clone().map(|query| self.seen(batch, query)).filter(|seen| !seen.is_empty());
        let union = |all: Range<usize>, seen: Range<usize>| all.start.min(seen.start)..all.end.max(seen.end);
        let mut seen = ranges.reduce(union).unwrap_or(0..0);
        if let Some(documents) = self.documents {
            let own = queries.filter_map(|query| self.document(documents, batch, query));
            let (least, most) =
                own.fold((i64::MAX, i64::MIN), |(least, most), own| (least.min(own), most.max(own)));
            let documents = &documents[batch * self.sizes.keys..][..self.sizes.keys];
            let may_be_seen = |key: &usize| (least..=most).contains(&documents[*key]);
            let first = seen.clone().find(may_be_seen);
            let last = seen.clone().rfind(may_be_seen);
            seen = first.zip(last).map_or(0..0, |(first, last)| first..last + 1);
        }
        // Where tiles begin depends on the keys alone, and so do the sums over them.
        let (mut key, end) = (seen.start / RUN * RUN, seen.end);
        std::iter::from_fn(move || {
            let tile = Tile { block, key, keys: (KEYS - key % KEYS).min(end.checked_sub(key)?) };
            key += tile.keys;
            (tile.keys > 0).then_some(tile)
        })
    }

    /// The factors of a row of weights: 0 for those that are dropped.
    pub(super) fn kept(&self, tile: Tile, row: usize, factors: &mut [T; KEYS]) {
        let Some(Dropout { seed, probability, factor }) = &self.dropout else { return };
        let Sizes { heads, queries, keys, .. } = self.sizes;
        let Tile { block, key, .. } = tile;
        let query = (block.batch * heads + block.head) * queries + block.query + row;
        let mut rng = rng(*seed);
        // The generator advances by one for each weight.
        rng.advance(query as u128 * keys as u128 + key as u128);
        for kept in &mut factors[..tile.keys] {
            *kept = factor.or_zero(unit(&mut rng) >= *probability);
        }
    }

    /// Computes scores before they are finished: products of queries and keys with their scale, over the cap if there
    /// is one.
    pub(super) fn products(&self, cx: &Cx, tile: Tile, products: &mut [T]) -> Result<()> {
        let (queries, keys) = (
            self.of_queries(self.q, tile.block, self.sizes.depth),
            self.of_keys(self.k, tile, self.sizes.depth),
        );
        let scale = if self.is_capped() { self.scale / self.softcap } else { self.scale };
        cx.product_scaled(products, tile.keys, (false, scale), queries, keys.t())
    }

    /// Turns products of queries and keys into scores, `-∞` where a key is hidden. `tangents` become the hyperbolic
    /// tangents of capped scores, if there is a cap and they are wanted.
    #[inline(always)]
    pub(super) fn finish<F: LaneOf<T>>(&self, tile: Tile, scores: &mut [T], tangents: &mut [T]) {
        if self.is_capped() {
            let cap = F::from(wide(self.softcap));
            match tangents {
                [] => map_lanes([], [&mut *scores], |[], [x]: [F; 1]| [x.tanh() * cap]),
                _ => map_lanes([], [&mut *scores, tangents], |[], [x, _]: [F; 2]| {
                    let tangent = x.tanh();
                    [tangent * cap, tangent]
                }),
            }
        }
        self.hide::<F>(tile, scores);
    }

    #[inline(always)]
    fn hide<F: LaneOf<T>>(&self, tile: Tile, scores: &mut [T]) {
        let Tile { block, key, keys } = tile;
        let hidden = T::of(f64::NEG_INFINITY);
        for (row, scores) in scores.chunks_exact_mut(keys).enumerate() {
            let query = block.query + row;
            let seen = self.seen(block.batch, query);
            let before = seen.start.saturating_sub(key).min(keys);
            let after = seen.end.saturating_sub(key).min(keys);
            scores[..before].fill(hidden);
            scores[after.max(before)..].fill(hidden);
            match &self.mask {
                None => {}
                Some(Mask::Keep(kept, strides)) => {
                    let first = mask_row(*strides, block, query);
                    for (at, score) in scores.iter_mut().enumerate() {
                        if !kept[first + (key + at) * strides[3]].get() {
                            *score = hidden;
                        }
                    }
                }
                Some(Mask::Add(added, strides @ [.., 1])) => {
                    let added = &added[mask_row(*strides, block, query) + key..];
                    map_lanes([added], [scores], |[added]: [F; 1], [x]| [x + added]);
                }
                Some(Mask::Add(added, strides)) => {
                    let added = F::new(added[mask_row(*strides, block, query)]);
                    map_lanes([], [scores], |[], [x]: [F; 1]| [x + added]);
                }
            }
        }
        if let Some(documents) = self.documents {
            let of_keys = &documents[block.batch * self.sizes.keys..][key..];
            for (row, scores) in scores.chunks_exact_mut(keys).enumerate() {
                let own = self.document(documents, block.batch, block.query + row);
                for (score, document) in scores.iter_mut().zip(of_keys) {
                    if own != Some(*document) {
                        *score = hidden;
                    }
                }
            }
        }
    }
}

/// The distance of elements along batches, heads, queries and keys, for a tensor that broadcasts to these dimensions.
pub(super) fn broadcast_strides(dims: &[usize]) -> [usize; 4] {
    let (mut strides, mut stride) = ([0; 4], 1);
    for (to, dim) in strides.iter_mut().rev().zip(dims.iter().rev()) {
        *to = if *dim == 1 { 0 } else { stride };
        stride *= dim;
    }
    strides
}

/// The first element of a mask for a query.
fn mask_row([batches, heads, queries, _]: [usize; 4], block: QueryBlock, query: usize) -> usize {
    block.batch * batches + block.head * heads + query * queries
}
