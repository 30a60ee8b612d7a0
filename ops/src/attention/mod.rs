//! Scaled dot-product attention with memory that is linear in the lengths: at any time, scores exist for a tile of
//! queries and keys of one head only. The composition materialises all scores.

mod cache;
mod composition;
mod forward;
mod gradient;
mod options;
mod positions;
mod scores;
mod second_order;

pub use cache::{AssertWithin, CacheUpdate};
pub use options::{AttentionAttrs, AttentionOptions};
pub(crate) use positions::rotary_embedding;
pub use positions::{Rotary, RotaryScaling, alibi_mask};

use autobwd::{
    Buf, Composed, Cx, DType, Dims, GradCx, Infer, Kernel, Meta, Result, Var,
    check::*,
    op::with_float,
    register_op,
    tensor::{Dim, OptionalBuf},
};

use self::{
    gradient::{Gradients, Saved},
    scores::{Scores, Sizes},
    second_order::{Arriving, OfIncoming},
};
use crate::kernel_helpers::one_integer;

/// Scaled dot-product attention (Vaswani et al., 2017) of every head: `out = softmax(scores) · v`, with
/// `scores = q · kᵀ / √d`, which the options cap, shift and hide. The output of a query that sees no key is 0.
///
/// For the gradient, only `log_sum = ln Σ exp(scores)` is saved (Dao et al., 2022). Memory is linear in the numbers
/// of queries and keys, also for first and second derivatives, except for the gradient of an additive mask of that
/// size.
#[register_op(grad = ScaledDotProductAttentionGrad, infallible)]
pub struct ScaledDotProductAttention<V = Var> {
    /// Queries, `[batch, queries, heads, d]`.
    #[input]
    pub q: V,
    /// Keys, `[batch, keys, key heads, d]`. Equal numbers of heads of queries share a head of keys (Ainslie et al.,
    /// 2023).
    #[input]
    pub k: V,
    /// Values, `[batch, keys, key heads, w]`.
    #[input]
    pub v: V,
    /// Of a shape that broadcasts to `[batch, heads, queries, keys]`. If bool, a query sees the keys where it is true;
    /// numbers of the dtype of `q` are added to scores, and `-∞` hides a key.
    #[input]
    pub mask: Option<V>,
    /// The number of the document of each key, int64 `[batch, keys]`: a query sees the keys of its own document.
    #[input]
    pub documents: Option<V>,
    /// Positions of the queries among the keys, int64 `[batch, queries]`, instead of the last ones: what a causal mask,
    /// a window and documents go by. A negative one is before all keys, one beyond the last is after them.
    #[input]
    pub positions: Option<V>,
    /// Seed of dropped weights instead of attribute `seed`: one int64 or int32 number.
    #[input("Seed")]
    pub seed_tensor: Option<V>,
    /// `[batch, queries, heads, w]`.
    #[output]
    pub out: V,
    /// `[batch, queries, heads]`; 0 for a query that sees no key.
    #[output]
    pub log_sum: V,
    /// What limits and shifts scores.
    #[attrs]
    pub attention: AttentionAttrs,
}
impl Infer for ScaledDotProductAttention<Meta> {
    fn infer(&mut self) -> Result<()> {
        let ScaledDotProductAttention { q, k, v, mask, documents, positions, seed_tensor, .. } = &*self;
        self.attention.check()?;
        let options = [mask, documents, positions, seed_tensor].map(Option::as_ref);
        let [batch, queries, heads, width] = check_attention(q, [k, v], options)?;
        let (dtype, out) = (q.dtype, [batch, queries, heads, width].into_iter().collect::<Dims>());
        self.out.set(dtype, out);
        self.log_sum.set(dtype, [batch, queries, heads].into_iter().collect::<Dims>());
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
            let options = [&self.mask, &self.documents, &self.positions, &self.seed_tensor].map(Option::as_ref);
            let scores = Scores::<T>::of([&self.q, &self.k, &self.v], options, &self.attention)?;
            forward::attend(&scores, cx, self.out.slice_mut()?, self.log_sum.slice_mut()?)
        })
    }

    fn scratch_bytes(&self, workers: usize) -> usize {
        forward::scratch_len(Sizes::of(&self.q, &self.k, &self.v)) * workers * self.q.dtype().size()
    }
}

autobwd::samples!(
    ScaledDotProductAttention,
    [
        attention([2, 3, 4, 5], [6, 4], 5),
        // Heads of queries share heads of keys; values are wider.
        attention([2, 3, 4, 5], [6, 2], 7),
        attention([1, 5, 3, 2], [5, 1], 2).limited(|limits| limits.causal = true),
        attention([2, 3, 2, 2], [5, 2], 2).limited(|limits| limits.causal = true),
        // Queries before the first key see none.
        attention([1, 5, 2, 2], [3, 2], 3).limited(|limits| limits.causal = true),
        attention([1, 6, 1, 2], [6, 1], 2).limited(|limits| limits.window = 1),
        attention([1, 7, 2, 2], [7, 1], 2).limited(|limits| (limits.causal, limits.window) = (true, 2)),
        attention([1, 5, 1, 2], [2, 1], 2).limited(|limits| limits.window = 0),
        attention([2, 3, 2, 4], [5, 2], 3).limited(|limits| limits.scale = -0.7),
        attention([2, 3, 2, 4], [5, 2], 3).limited(|limits| limits.softcap = 0.8),
        ScaledDotProductAttention {
            mask: Some(uniform([2, 1, 4])),
            documents: Some(documents([1, 4], [7, 7, 2, 2])),
            ..attention([1, 3, 2, 2], [4, 1], 3).limited(|limits| (
                limits.softcap,
                limits.causal,
                limits.scale
            ) = (1.5, true, 0.9))
        },
        attention([2, 3, 2, 4], [5, 2], 3).limited(|limits| limits.dropout_prob = 0.4),
        ScaledDotProductAttention {
            seed_tensor: Some(given([1], [5.0]).of(DType::I64)),
            ..attention([2, 3, 2, 4], [5, 1], 3).limited(|limits| (
                limits.dropout_prob,
                limits.softcap,
                limits.causal
            ) = (0.5, 0.9, true))
        },
        attention([1, 2, 1, 2], [3, 1], 2).limited(|limits| (limits.dropout_prob, limits.seed) = (1.0, 3)),
        // A mask that leaves a row empty.
        ScaledDotProductAttention {
            mask: Some(given([3, 2], [1.0, 0.0, 0.0, 0.0, 1.0, 1.0]).of(DType::Bool)),
            ..attention([1, 3, 4, 5], [2, 1], 4)
        },
        ScaledDotProductAttention {
            mask: Some(integers_below(2, [2, 1, 1, 5]).of(DType::Bool)),
            ..attention([2, 3, 4, 7], [5, 1], 6).limited(|limits| limits.causal = true)
        },
        ScaledDotProductAttention { mask: Some(uniform([2, 2, 3, 4])), ..attention([2, 3, 2, 5], [4, 2], 2) },
        ScaledDotProductAttention { mask: Some(uniform([2, 1, 1, 1])), ..attention([2, 3, 2, 5], [4, 2], 2) },
        ScaledDotProductAttention { mask: Some(uniform([2, 1, 4])), ..attention([2, 3, 2, 5], [4, 1], 2) },
        ScaledDotProductAttention { mask: Some(uniform([3, 1])), ..attention([2, 3, 2, 5], [4, 2], 2) },
        ScaledDotProductAttention { mask: Some(uniform([])), ..attention([2, 3, 1, 5], [4, 1], 2) },
        ScaledDotProductAttention {
            mask: Some(given(
                [2, 3],
                [0.5, f64::NEG_INFINITY, -0.5, f64::NEG_INFINITY, 0.3, f64::NEG_INFINITY]
            )),
            ..attention([1, 2, 2, 2], [3, 2], 2)
        }
        .not_a_derivative("infinite numbers have no differences"),
        ScaledDotProductAttention {
            documents: Some(documents([2, 6], [1, 1, 1, 2, 2, 2, 4, 3, 3, 3, 3, 4])),
            ..attention([2, 6, 2, 2], [6, 1], 2)
        },
        ScaledDotProductAttention {
            documents: Some(documents([1, 6], [1, 1, 1, 2, 2, 2])),
            ..attention([1, 4, 2, 2], [6, 2], 2).limited(|limits| (limits.causal, limits.window) = (true, 1))
        },
        // Queries anywhere among the keys of a cache, and before all of them.
        ScaledDotProductAttention {
            positions: Some(positions([2, 3], [0, 1, 2, -1, 4, 5])),
            ..attention([2, 3, 2, 2], [6, 1], 3).limited(|limits| limits.causal = true)
        },
        ScaledDotProductAttention {
            positions: Some(positions([1, 4], [5, 0, -3, 9])),
            documents: Some(documents([1, 6], [1, 1, 1, 2, 2, 2])),
            ..attention([1, 4, 2, 2], [6, 2], 2).limited(|limits| (limits.softcap, limits.window) = (0.9, 1))
        },
        ScaledDotProductAttention {
            positions: Some(positions([1, 1], [270])),
            ..attention([1, 1, 1, 1], [520, 1], 1)
                .limited(|limits| (limits.causal, limits.window) = (true, 20))
        },
        ScaledDotProductAttention {
            positions: Some(positions([2, 1], [0, 1])),
            ..attention([2, 1, 2, 2], [3, 1], 2)
        },
        // Hidden scores with an infinite exponential.
        ScaledDotProductAttention {
            q: given([1, 2, 1, 1], [20.0, 0.5]),
            k: given([1, 2, 1, 1], [0.5, 40.0]),
            ..attention([1, 2, 1, 1], [2, 1], 1).limited(|limits| limits.causal = true)
        },
        ScaledDotProductAttention {
            q: between(-9.0, 9.0, [1, 3, 1, 4]),
            ..attention([1, 3, 1, 4], [20, 1], 4)
        },
        // Several tiles, the last ones partial.
        attention([1, 66, 1, 1], [66, 1], 1).limited(|limits| (limits.causal, limits.window) = (true, 20)),
        attention([1, 2, 1, 1], [259, 1], 1).limited(|limits| limits.softcap = 2.0),
        attention([0, 3, 2, 4], [5, 2], 4),
        attention([2, 0, 2, 4], [5, 2], 4),
        attention([2, 3, 0, 4], [5, 0], 4),
        attention([2, 3, 2, 0], [5, 2], 3),
        attention([2, 3, 2, 4], [5, 2], 0),
        ScaledDotProductAttention { k: uniform([2, 6, 4, 6]), ..attention([2, 3, 4, 5], [6, 4], 5) }
            .fails("`K`: [2, _, _, 5] is needed, keys for these queries"),
        attention([2, 3, 4, 5], [6, 3], 5).fails("`K`: 3 heads of keys do not divide 4 heads of queries"),
        ScaledDotProductAttention { v: uniform([2, 7, 4, 5]), ..attention([2, 3, 4, 5], [6, 4], 5) }
            .fails("`V`: [2, 6, 4, _] is needed, values for these keys"),
        ScaledDotProductAttention {
            v: uniform([2, 6, 4, 5]).of(DType::F16),
            ..attention([2, 3, 4, 5], [6, 4], 5)
        }
        .fails("`V`"),
        attention([2, 3, 4, 5], [0, 4], 5).fails("`K`: at least one key is needed"),
        ScaledDotProductAttention {
            mask: Some(integers_below(2, [3, 6]).of(DType::I32)),
            ..attention([2, 3, 4, 5], [6, 4], 5)
        }
        .fails("`Mask`: bool or "),
        ScaledDotProductAttention { mask: Some(uniform([3, 5])), ..attention([2, 3, 4, 5], [6, 4], 5) }
            .fails("`Mask`: a shape is needed that broadcasts to the scores, [2, 4, 3, 6]"),
        ScaledDotProductAttention {
            documents: Some(documents([1, 6], [1, 1, 1, 2, 2, 2])),
            ..attention([2, 3, 4, 5], [6, 4], 5)
        }
        .fails("`Documents`: int64 [2, 6] is needed, the document of each key"),
        ScaledDotProductAttention {
            documents: Some(documents([1, 2], [1, 1])),
            ..attention([1, 3, 1, 1], [2, 1], 1)
        }
        .fails("`Documents`: 3 queries have no places among 2 keys"),
        ScaledDotProductAttention {
            positions: Some(positions([2, 2], [0, 1, 2, 3])),
            ..attention([2, 3, 4, 5], [6, 4], 5)
        }
        .fails("`Positions`: int64 [2, 3] is needed, the position of each query"),
        attention([2, 3, 4, 5], [6, 4], 5)
            .limited(|limits| limits.scale = f32::INFINITY)
            .fails("attribute `scale`: inf is no finite number"),
        attention([2, 3, 4, 5], [6, 4], 5)
            .limited(|limits| limits.softcap = -1.0)
            .fails("attribute `softcap`"),
    ]
);

fn attention(q: [usize; 4], [keys, key_heads]: [usize; 2], width: usize) -> ScaledDotProductAttention<Draw> {
    let [batch, _, _, depth] = q;
    ScaledDotProductAttention {
        q: uniform(q),
        k: uniform([batch, keys, key_heads, depth]),
        v: uniform([batch, keys, key_heads, width]),
        mask: None,
        documents: None,
        positions: None,
        seed_tensor: None,
        out: out(),
        log_sum: out(),
        attention: AttentionAttrs::default(),
    }
}

impl ScaledDotProductAttention<Draw> {
    fn limited(mut self, limit: impl FnOnce(&mut AttentionAttrs)) -> Self {
        limit(&mut self.attention);
        self
    }
}

fn documents<const N: usize>(dims: [usize; 2], numbers: [i64; N]) -> Draw {
    given(dims, numbers.map(|number| number as f64)).of(DType::I64)
}

fn positions<const N: usize>(dims: [usize; 2], numbers: [i64; N]) -> Draw {
    documents(dims, numbers)
}

/// Checks the inputs; returns the numbers of sequences, queries, heads, and columns of values.
fn check_attention(
    q: &Meta,
    [k, v]: [&Meta; 2],
    [mask, documents, positions, seed]: [Option<&Meta>; 4],
) -> Result<[Dim; 4]> {
    q.float()?;
    let [batch, queries, heads, depth] = q.unpack()?;
    k.same_dtype(q)?;
    let [k_batch, keys, key_heads, k_depth] = k.unpack()?;
    let fits = batch.agrees(k_batch) && depth.agrees(k_depth);
    k.require(fits, || format!("[{batch}, _, _, {depth}] is needed, keys for these queries"))?;
    let divides = heads.get().zip(key_heads.get()).is_none_or(|(heads, shared)| match shared {
        0 => heads == 0,
        _ => heads.is_multiple_of(shared),
    });
    k.require(divides, || format!("{key_heads} heads of keys do not divide {heads} heads of queries"))?;
    k.require(keys != Dim::from(0), || "at least one key is needed".into())?;
    v.same_dtype(q)?;
    let [v_batch, values, v_heads, width] = v.unpack()?;
    let fits = batch.agrees(v_batch) && keys.agrees(values) && key_heads.agrees(v_heads);
    v.require(fits, || format!("[{batch}, {keys}, {key_heads}, _] is needed, values for these keys"))?;
    if let Some(mask) = mask {
        let is_added = mask.dtype == q.dtype;
        mask.require(is_added || mask.dtype == DType::Bool, || format!("bool or {} is needed", q.dtype))?;
        let scores = [batch, heads, queries, keys];
        let broadcasts = |(own, dim): (&Dim, &Dim)| own.agrees(*dim) || *own == 1;
        let fits = mask.rank() <= 4 && mask.dims.iter().rev().zip(scores.iter().rev()).all(broadcasts);
        mask.require(fits, || {
            format!("a shape is needed that broadcasts to the scores, [{batch}, {heads}, {queries}, {keys}]")
        })?;
    }
    if let Some(documents) = documents {
        let fits = matches!(&documents.dims[..], [own, of_keys] if own.agrees(batch) && of_keys.agrees(keys));
        documents.require(documents.dtype == DType::I64 && fits, || {
            format!("int64 [{batch}, {keys}] is needed, the document of each key")
        })?;
        let has_positions = positions.is_some()
            || queries.get().zip(keys.get()).is_none_or(|(queries, keys)| queries <= keys);
        documents.require(has_positions, || format!("{queries} queries have no places among {keys} keys"))?;
    }
    if let Some(positions) = positions {
        let fits = matches!(&positions.dims[..], [own, of_queries] if own.agrees(batch) && of_queries.agrees(queries));
        positions.require(positions.dtype == DType::I64 && fits, || {
            format!("int64 [{batch}, {queries}] is needed, the position of each query")
        })?;
    }
    seed.map_or(Ok(()), one_integer)?;
    Ok([batch, queries, heads, width])
}

/// With `p = exp(scores - log_sum)`, before dropout, and its factors `f`: `dscores = p * (f * (dout · vᵀ) - Σ dout *
/// out + dlog_sum)`, `dmask` is their sum, and `dq = scale * dscores · k`, `dk = scale * dscoresᵀ · q`, `dv = (f *
/// p)ᵀ · dout`. A cap `c` adds the factor `1 - tanh²(scale * q · kᵀ / c)` to `dscores` in `dq` and `dk`.
#[register_op(grad_of = ScaledDotProductAttention, grad = gradient_of_gradient, inferred, infallible)]
pub struct ScaledDotProductAttentionGrad<V = Var> {
    pub q: V,
    pub k: V,
    pub v: V,
    pub mask: Option<V>,
    pub documents: Option<V>,
    pub positions: Option<V>,
    pub seed_tensor: Option<V>,
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
    #[output]
    pub dmask: Option<V>,
    #[attrs]
    pub attention: AttentionAttrs,
}
impl Kernel for ScaledDotProductAttentionGrad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        with_float!(self.q, T => {
            let options = [&self.mask, &self.documents, &self.positions, &self.seed_tensor].map(Option::as_ref);
            let scores = Scores::<T>::of([&self.q, &self.k, &self.v], options, &self.attention)?;
            let saved = Saved {
                out: self.out.slice()?,
                log_sum: self.log_sum.slice()?,
                dout: self.dout.slice()?,
                dlog_sum: self.dlog_sum.slice()?,
            };
            let [dq, dk, dv] = [self.dq.slice_mut()?, self.dk.slice_mut()?, self.dv.slice_mut()?]
                .map(Option::unwrap_or_default);
            gradient::gradients(&scores, cx, saved, Gradients { dq, dk, dv })?;
            match &mut self.dmask {
                None => Ok(()),
                Some(dmask) => {
                    let mut dims = [1; 4];
                    let rank = dmask.dims().len();
                    dims[4 - rank..].copy_from_slice(dmask.dims());
                    gradient::mask_gradient(&scores, cx, saved, dims, dmask.slice_mut()?)
                }
            }
        })
    }

    fn scratch_bytes(&self, workers: usize) -> usize {
        let (sizes, tiles) =
            (Sizes::of(&self.q, &self.k, &self.v), gradient::tiles(self.attention.softcap > 0.0));
        gradient::scratch_len(sizes, tiles) * workers * self.q.dtype().size()
    }
}

/// One operator with memory that is linear in the lengths, and compositions for gradients from or to an additive mask.
fn gradient_of_gradient(fwd: &ScaledDotProductAttentionGrad, g: &mut GradCx<'_>) {
    let arriving =
        |output: Option<Var>| output.filter(|output| g.arrives(*output)).map(|output| g.grad(output));
    let second = ScaledDotProductAttentionGradGrad {
        q: fwd.q,
        k: fwd.k,
        v: fwd.v,
        mask: fwd.mask,
        documents: fwd.documents,
        positions: fwd.positions,
        seed_tensor: fwd.seed_tensor,
        out: fwd.out,
        log_sum: fwd.log_sum,
        dout: fwd.dout,
        dlog_sum: fwd.dlog_sum,
        ddq: arriving(fwd.dq),
        ddk: arriving(fwd.dk),
        ddv: arriving(fwd.dv),
        dq: g.wanted(fwd.q),
        dk: g.wanted(fwd.k),
        dv: g.wanted(fwd.v),
        ddout: g.wanted(fwd.dout),
        ddlog_sum: fwd.dlog_sum.and_then(|dlog_sum| g.wanted(dlog_sum)),
        attention: fwd.attention.clone(),
    };
    let arrives = [second.ddq, second.ddk, second.ddv].iter().any(Option::is_some);
    let wanted = [second.dq, second.dk, second.dv, second.ddout, second.ddlog_sum];
    if arrives && wanted.iter().any(Option::is_some) {
        g.push(second);
    }
    g.compose(&["Q@GRAD", "K@GRAD", "V@GRAD"], &["Mask"]);
    g.compose(&["Mask@GRAD"], &["Q", "K", "V", "Mask", "Out@GRAD", "LogSum@GRAD"]);
}

/// The gradients of the inputs of `scaled_dot_product_attention_grad`, for the gradients `ddq`, `ddk` and `ddv` of its
/// outputs.
///
/// With `dp = f * (dout · vᵀ)`, `shift = dlog_sum - Σ dout * out`, `g` the derivative of the cap, and `e = g * scale
/// * (ddq · kᵀ + q · ddkᵀ)`, the gradient of `dscores`:
///
/// - `ddlog_sum = Σ p * e` for each row, `ddout = (f * p * (e - ddlog_sum)) · v + (f * p) · ddv`;
/// - `dv = (f * p * (e - ddlog_sum))ᵀ · dout`;
/// - `s = e * (dp + shift) - ddlog_sum * dp + f * (dout · ddvᵀ)` is the gradient of `p`, and `t = g * p * (s - Σ p *
///   s)` that of products, less `2 / c * tanh * e * dscores` for a cap `c`;
/// - `dq = scale * (t · k + (g * dscores) · ddk)`, `dk = scale * (tᵀ · q + (g * dscores)ᵀ · ddq)`.
#[register_op(grad = Composed, infallible)]
pub struct ScaledDotProductAttentionGradGrad<V = Var> {
    /// Queries of the forward operator.
    #[input("Q")]
    pub q: V,
    /// Its keys.
    #[input("K")]
    pub k: V,
    /// Its values.
    #[input("V")]
    pub v: V,
    /// Its mask.
    #[input("Mask")]
    pub mask: Option<V>,
    /// Its documents.
    #[input("Documents")]
    pub documents: Option<V>,
    /// Its positions.
    #[input("Positions")]
    pub positions: Option<V>,
    /// Its seed.
    #[input("Seed")]
    pub seed_tensor: Option<V>,
    /// Its output.
    #[input("Out")]
    pub out: V,
    /// Its logarithms of sums.
    #[input("LogSum")]
    pub log_sum: V,
    /// The gradient of `out`.
    #[input("Out@GRAD")]
    pub dout: V,
    /// The gradient of `log_sum`.
    #[input("LogSum@GRAD")]
    pub dlog_sum: Option<V>,
    /// The gradient of the gradient of `q`.
    #[input("Q@GRAD@GRAD")]
    pub ddq: Option<V>,
    /// The gradient of the gradient of `k`.
    #[input("K@GRAD@GRAD")]
    pub ddk: Option<V>,
    /// The gradient of the gradient of `v`.
    #[input("V@GRAD@GRAD")]
    pub ddv: Option<V>,
    /// Shape of `q`.
    #[output("Q@GRAD")]
    pub dq: Option<V>,
    /// Shape of `k`.
    #[output("K@GRAD")]
    pub dk: Option<V>,
    /// Shape of `v`.
    #[output("V@GRAD")]
    pub dv: Option<V>,
    /// The gradient of the gradient of `out`.
    #[output("Out@GRAD@GRAD")]
    pub ddout: Option<V>,
    /// The gradient of the gradient of `log_sum`.
    #[output("LogSum@GRAD@GRAD")]
    pub ddlog_sum: Option<V>,
    /// Attributes of the forward operator.
    #[attrs]
    pub attention: AttentionAttrs,
}
impl Infer for ScaledDotProductAttentionGradGrad<Meta> {
    fn infer(&mut self) -> Result<()> {
        let ScaledDotProductAttentionGradGrad {
            q, k, v, out, log_sum, dout, dlog_sum, ddq, ddk, ddv, ..
        } = &*self;
        self.attention.check()?;
        let options = [&self.mask, &self.documents, &self.positions, &self.seed_tensor].map(Option::as_ref);
        check_attention(q, [k, v], options)?;
        dout.same_as(out)?;
        for (gradient, of) in [(dlog_sum, log_sum), (ddq, q), (ddk, k), (ddv, v)] {
            gradient.iter().try_for_each(|gradient| gradient.same_as(of))?;
        }
        let outs = [&mut self.dq, &mut self.dk, &mut self.dv, &mut self.ddout, &mut self.ddlog_sum];
        for (gradient, of) in outs.into_iter().zip([&self.q, &self.k, &self.v, &self.out, &self.log_sum]) {
            gradient.iter_mut().for_each(|gradient| gradient.like(of));
        }
        Ok(())
    }
}
impl Kernel for ScaledDotProductAttentionGradGrad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        with_float!(self.q, T => {
            let options = [&self.mask, &self.documents, &self.positions, &self.seed_tensor].map(Option::as_ref);
            let scores = Scores::<T>::of([&self.q, &self.k, &self.v], options, &self.attention)?;
            let saved = Saved {
                out: self.out.slice()?,
                log_sum: self.log_sum.slice()?,
                dout: self.dout.slice()?,
                dlog_sum: self.dlog_sum.slice()?,
            };
            let arriving = Arriving { ddq: self.ddq.slice()?, ddk: self.ddk.slice()?, ddv: self.ddv.slice()? };
            let [dq, dk, dv] = [self.dq.slice_mut()?, self.dk.slice_mut()?, self.dv.slice_mut()?]
                .map(Option::unwrap_or_default);
            let [ddout, ddlog_sum] =
                [self.ddout.slice_mut()?, self.ddlog_sum.slice_mut()?].map(Option::unwrap_or_default);
            let of_incoming = OfIncoming { ddout, ddlog_sum };
            second_order::second_order(&scores, cx, saved, arriving, Gradients { dq, dk, dv }, of_incoming)
        })
    }

    fn scratch_bytes(&self, workers: usize) -> usize {
        let sizes = Sizes::of(&self.q, &self.k, &self.v);
        second_order::second_order_scratch_len(sizes) * workers * self.q.dtype().size()
    }
}
