//! The meaning of attention and of its second derivative, with all scores, `[batch, heads, queries, keys]`, in memory.

use autobwd::{Composition, DType, Expr, New, emit};

use super::{AttentionAttrs, ScaledDotProductAttention, ScaledDotProductAttentionGradGrad};
use crate::{
    Math,
    fill::FillAnyLike,
    math::{DimExpr, filled, in_dtype, like, positions, sizes},
    matmul::product,
    random::{NoiseDistribution, NoiseLike},
    softmax::{largest_along, sum_along},
};

impl Composition for ScaledDotProductAttention<Expr> {
    fn compose(&mut self) {
        let ScaledDotProductAttention { q, k, v, mask, documents, positions, seed_tensor, attention, .. } =
            &*self;
        let heads = Heads::of(q, k, attention);
        let options = [mask, documents, positions, seed_tensor].map(Option::as_ref);
        let softmax = heads.softmax(options, attention);
        let out = softmax.dropped(&softmax.shares).matmul(&heads.repeated(v));
        self.log_sum = softmax.log_sum.squeeze(&[-1]).transpose(&[0, 2, 1]);
        self.out = by_position(&out);
    }
}

impl Composition for ScaledDotProductAttentionGradGrad<Expr> {
    fn compose(&mut self) {
        let Self {
            q,
            k,
            v,
            mask,
            documents,
            positions,
            seed_tensor,
            attention,
            dout,
            dlog_sum,
            ddq,
            ddk,
            ddv,
            ..
        } = &*self;
        let heads = Heads::of(q, k, attention);
        let options = [mask, documents, positions, seed_tensor].map(Option::as_ref);
        let softmax = heads.softmax(options, attention);
        let (shares, v, dout) = (&softmax.shares, heads.repeated(v), by_head(dout));
        let [ddq, ddk, ddv] = [
            ddq.as_ref().map(by_head),
            ddk.as_ref().map(|ddk| heads.repeated(ddk)),
            ddv.as_ref().map(|ddv| heads.repeated(ddv)),
        ];
        let dshares = softmax.dropped(&product([&dout, &v], [false, true]));
        let dlog_sum = dlog_sum.as_ref().map(|dlog_sum| dlog_sum.transpose(&[0, 2, 1]).unsqueeze(&[-1]));
        let mut centred = &dshares - &sum_along(&(shares * &dshares), -1);
        if let Some(dlog_sum) = dlog_sum {
            centred = centred + dlog_sum;
        }
        let dscores = shares * &centred;
        // Gradients of `dscores`, of `shares`, and so on backwards.
        let of_products = total([
            ddq.as_ref().map(|ddq| product([ddq, &heads.k], [false, true])),
            ddk.as_ref().map(|ddk| product([&heads.q, ddk], [false, true])),
        ]);
        let of_products = heads.scaled(&of_products.unwrap_or_else(|| like(shares, 0.0)));
        let of_dscores = softmax.before_cap(&of_products);
        let mean = sum_along(&(shares * &of_dscores), -1);
        let mut of_shares = &of_dscores * &centred - &mean * &dshares;
        if let Some(ddv) = &ddv {
            of_shares = of_shares + softmax.dropped(&product([&dout, ddv], [false, true]));
        }
        let of_scores = shares * &(&of_shares - &sum_along(&(shares * &of_shares), -1));
        let mut of_scores = softmax.before_cap(&of_scores);
        if let Some(tangents) = &softmax.tangents {
            let bend = -2.0 / f64::from(attention.softcap);
            of_scores = of_scores + &of_dscores * (&dscores * tangents * bend);
        }
        let dscores = softmax.before_cap(&dscores);
        let of_dweights = softmax.dropped(&(shares * &(&of_dscores - &mean)));
        let dq = total([Some(of_scores.matmul(&heads.k)), ddk.map(|ddk| dscores.matmul(&ddk))]);
        let dk = total([
            Some(product([&of_scores, &heads.q], [true, false])),
            ddq.map(|ddq| product([&dscores, &ddq], [true, false])),
        ]);
        let ddout =
            total([Some(of_dweights.matmul(&v)), ddv.map(|ddv| softmax.dropped(shares).matmul(&ddv))]);
        let dv = heads.summed(&product([&of_dweights, &dout], [true, false]));
        self.dq = dq.map(|dq| by_position(&heads.scaled(&dq)));
        self.dk = dk.map(|dk| by_position(&heads.scaled(&heads.summed(&dk))));
        self.dv = Some(by_position(&dv));
        self.ddout = ddout.map(|ddout| by_position(&ddout));
        self.ddlog_sum = Some(mean.squeeze(&[-1]).transpose(&[0, 2, 1]));
    }
}

/// `[batch, positions, heads, columns]` as `[batch, heads, positions, columns]`.
fn by_head(x: &Expr) -> Expr {
    x.transpose(&[0, 2, 1, 3])
}

/// The inverse of [`by_head`].
fn by_position(x: &Expr) -> Expr {
    x.transpose(&[0, 2, 1, 3])
}

fn total(terms: [Option<Expr>; 2]) -> Option<Expr> {
    terms.into_iter().flatten().reduce(|sum, term| sum + term)
}

/// Queries and keys by head, keys repeated for the heads of queries that share them.
struct Heads {
    q: Expr,
    k: Expr,
    /// Heads of keys, and heads of queries that share one.
    groups: [DimExpr; 2],
    scale: Scale,
}

enum Scale {
    Known(f64),
    Computed(Expr),
}

impl Heads {
    fn of(q: &Expr, k: &Expr, attrs: &AttentionAttrs) -> Heads {
        let ([_, _, heads, depth], [_, _, key_heads, _]) = (sizes(q), sizes(k));
        let scale = match depth.known() {
            _ if attrs.scale != 0.0 => Scale::Known(attrs.scale.into()),
            Some(depth) => Scale::Known(attrs.scale_of(depth as usize)),
            None => Scale::Computed(in_dtype(&depth.max(1).number(q.builder()), q.dtype()).rsqrt()),
        };
        let groups = [key_heads.clone(), heads / key_heads.max(1)];
        let heads = Heads { q: by_head(q), k: by_head(k), groups, scale };
        Heads { k: heads.repeated(k), ..heads }
    }

    fn scaled(&self, x: &Expr) -> Expr {
        match &self.scale {
            Scale::Known(scale) => x * *scale,
            Scale::Computed(scale) => x * scale,
        }
    }

    /// Keys or values by head, repeated.
    fn repeated(&self, x: &Expr) -> Expr {
        let x = by_head(x);
        let [key_heads, group] = &self.groups;
        if group.known() == Some(1) {
            return x;
        }
        let [batch, _, positions, columns] = sizes(&x);
        let repeated = x.unsqueeze(&[2]).expand_to(&[
            batch.clone(),
            key_heads.clone(),
            group.clone(),
            positions.clone(),
            columns.clone(),
        ]);
        repeated.reshape_to(&[batch, key_heads * group, positions, columns])
    }

    /// The gradient of keys or values by head, from the gradient of repeated ones.
    fn summed(&self, x: &Expr) -> Expr {
        let [key_heads, group] = &self.groups;
        if group.known() == Some(1) {
            return x.clone();
        }
        let [batch, _, positions, columns] = sizes(x);
        x.reshape_to(&[batch, key_heads.clone(), group.clone(), positions, columns]).sum(&[2])
    }

    fn softmax(&self, [mask, documents, at, seed]: [Option<&Expr>; 4], attrs: &AttentionAttrs) -> Softmax {
        let mut scores = self.scaled(&product([&self.q, &self.k], [false, true]));
        let mut tangents = None;
        if attrs.softcap > 0.0 {
            let cap = f64::from(attrs.softcap);
            let tangent = (scores * (1.0 / cap)).tanh();
            scores = &tangent * cap;
            tangents = Some(tangent);
        }
        for seen in visible(&scores, [mask, documents, at], attrs) {
            scores = seen.where_cond(&scores, &like(&scores, f64::NEG_INFINITY));
        }
        if let Some(mask) = mask.filter(|mask| mask.dtype() != DType::Bool) {
            scores = &scores + mask;
        }
        // A query that sees no key has weights 0.
        let largest = largest_along(&scores, -1).stop_gradient();
        let is_empty = largest.equal(&like(&largest, f64::NEG_INFINITY));
        let shift = is_empty.where_cond(&like(&largest, 0.0), &largest).stop_gradient();
        let exp = (&scores - &shift).exp();
        let sum = sum_along(&exp, -1) + is_empty.cast(scores.dtype());
        let kept = (attrs.dropout_prob > 0.0).then(|| {
            let shape = FillAnyLike { x: (&scores).into(), out: New, value: 0.0, dtype: Some(DType::F64) };
            let number = || filled(scores.builder(), DType::I64, &attrs.seed.to_string(), &[1.into()]);
            let seed = seed.cloned().unwrap_or_else(number).into();
            // In double precision, as the kernel compares.
            let (x, distribution) = (emit(shape).out.into(), NoiseDistribution::Uniform);
            let noise = emit(NoiseLike { x, seed, out: New, distribution }).out;
            let is_kept = noise.greater_equal(&like(&noise, attrs.dropout_prob.into()));
            in_dtype(&is_kept, scores.dtype()) * attrs.kept_factor()
        });
        Softmax { shares: &exp / &sum, log_sum: sum.log() + shift, kept, tangents }
    }
}

struct Softmax {
    /// Weights before dropout.
    shares: Expr,
    /// The logarithms of sums, `[batch, heads, queries, 1]`.
    log_sum: Expr,
    /// Factors of dropout.
    kept: Option<Expr>,
    /// Capped scores, divided by the cap.
    tangents: Option<Expr>,
}

impl Softmax {
    fn dropped(&self, weights: &Expr) -> Expr {
        self.kept.as_ref().map_or_else(|| weights.clone(), |kept| weights * kept)
    }

    /// The gradient of scores before they are capped.
    fn before_cap(&self, gradient: &Expr) -> Expr {
        match &self.tangents {
            Some(tangents) => gradient * &(-tangents.square() + 1.0),
            None => gradient.clone(),
        }
    }
}

/// Where a query sees a key: conditions that broadcast to the scores.
fn visible(scores: &Expr, [mask, documents, at]: [Option<&Expr>; 3], attrs: &AttentionAttrs) -> Vec<Expr> {
    let builder = scores.builder();
    let [batch, _, queries, keys] = sizes(scores);
    let offset = &keys - &queries;
    // [batch, 1, queries, 1], or [queries, 1].
    let at = at.map(|at| at.unsqueeze(&[1, 3]));
    let all = |seen: Vec<Option<Expr>>| seen.into_iter().flatten().reduce(|a, b| a.logical_and(&b));
    let mut seen = vec![];
    if attrs.causal || attrs.window >= 0 {
        let at = match &at {
            // What is farther away sees as little, and has a distance.
            Some(at) => {
                let beyond = i64::from(attrs.window.max(0)) + 1;
                at.maximum(&like(at, -beyond as f64)).minimum(&(&keys + beyond).number(builder))
            }
            None => positions(builder, &queries).unsqueeze(&[1]) + offset.number(builder),
        };
        let distance = at - positions(builder, &keys).unsqueeze(&[0]);
        let zeros = || like(&distance, 0.0);
        let window = || like(&distance, attrs.window.into());
        let causal = attrs.causal.then(|| distance.greater_equal(&zeros()));
        let before = (attrs.window >= 0).then(|| distance.less_equal(&window()));
        let after = (attrs.window >= 0 && !attrs.causal).then(|| distance.greater_equal(&(-window())));
        seen.extend(all(vec![causal, before, after]));
    }
    match (documents, at) {
        (None, _) => {}
        (Some(documents), None) => {
            let own = documents.slice_to(1, &offset, &keys).unsqueeze(&[1, 3]);
            seen.push(own.equal(&documents.unsqueeze(&[1, 2])));
        }
        (Some(documents), Some(at)) => {
            let count = keys.number(builder);
            let is_key = at.greater_equal(&like(&at, 0.0)).logical_and(&at.less_than(&count));
            let first = (positions(builder, &batch) * &count).unsqueeze(&[1, 2, 3]);
            let index = is_key.where_cond(&at, &like(&at, 0.0)) + first;
            let index = index.reshape_to(&[&batch * &queries]);
            let own = documents.reshape_to(&[&batch * &keys]).gather(&index, 0);
            let own = own.reshape_to(&[batch, 1.into(), queries, 1.into()]);
            seen.push(own.equal(&documents.unsqueeze(&[1, 2])).logical_and(&is_key));
        }
    }
    let mask = mask.filter(|mask| mask.dtype() == DType::Bool);
    seen.extend(mask.map(|mask| mask.expand_to(&sizes::<4>(scores))));
    seen
}
