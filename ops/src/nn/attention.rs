use autobwd::{Builder, DType, Error, Expr};

use super::{KvCacheStep, Linear, layer_name};
use crate::{Init, Math, attention::AttentionOptions, math::failed};

/// Multi-head attention (Vaswani et al., 2017): scaled dot-product attention between projections of `x`, head by head,
/// and an output projection.
///
/// ```
/// use autobwd::{Builder, DType};
/// use autobwd_ops::nn::MultiHeadAttention;
/// let net = Builder::new();
/// let x = net.input("x", DType::F32, &[-1, 16, 64]);
/// let out = MultiHeadAttention::builder(&net, 64, 4).causal().seed(7).build().forward(&x);
/// assert_eq!(out.dims().to_string(), "[-1, 16, 64]");
/// ```
#[derive(Debug)]
pub struct MultiHeadAttention {
    /// Projection to queries.
    pub query: Linear,
    /// Projection to keys.
    pub key: Linear,
    /// Projection to values.
    pub value: Linear,
    /// Output projection.
    pub output: Linear,
    heads: usize,
    causal: bool,
}

/// Builder of a [`MultiHeadAttention`] layer.
#[derive(Debug)]
pub struct MultiHeadAttentionBuilder<'a> {
    net: &'a Builder,
    name: Option<String>,
    width: usize,
    heads: usize,
    dtype: DType,
    weight: Init,
    causal: bool,
    seed: i32,
}

impl MultiHeadAttention {
    /// A layer for vectors of `width` elements, divided evenly between `heads`: float32, weights by
    /// [`Init::XavierUniform`], bias 0, no causal mask.
    pub fn builder(net: &Builder, width: usize, heads: usize) -> MultiHeadAttentionBuilder<'_> {
        let weight = Init::XavierUniform;
        MultiHeadAttentionBuilder {
            net,
            name: None,
            width,
            heads,
            dtype: DType::F32,
            weight,
            causal: false,
            seed: 0,
        }
    }

    /// Self-attention of `x`, `[batch, length, width]`. Fails for another width or dtype.
    #[track_caller]
    pub fn forward(&self, x: &Expr) -> Expr {
        self.cross_attention(x, x)
    }

    /// Cross-attention of `x` to `seen`, both `[batch, .., width]`. If the layer is causal, the last vector of `x` is at the
    /// position of the last one of `seen`. Fails for another width or dtype.
    #[track_caller]
    pub fn cross_attention(&self, x: &Expr, seen: &Expr) -> Expr {
        let [q, k, v] = self.project(x, seen);
        self.merge_heads(&q.attention(&k, &v, self.causal))
    }

    /// As [`cross_attention`](MultiHeadAttention::cross_attention), with a mask ([`Math::masked_attention`]) of a shape
    /// that broadcasts to `[batch, heads, queries, keys]`, such as `[batch, 1, 1, keys]` for padding.
    ///
    /// ```
    /// # use autobwd::{Builder, DType};
    /// # use autobwd_ops::{Math, nn::MultiHeadAttention};
    /// let net = Builder::new();
    /// let x = net.input("x", DType::F32, &[-1, 16, 64]);
    /// let is_word = net.input("is_word", DType::Bool, &[-1, 16]);
    /// let attention = MultiHeadAttention::builder(&net, 64, 4).causal().build();
    /// let out = attention.masked_attention(&x, &x, &is_word.unsqueeze(&[1, 2]));
    /// assert_eq!(out.dims().to_string(), "[-1, 16, 64]");
    /// ```
    #[track_caller]
    pub fn masked_attention(&self, x: &Expr, seen: &Expr, mask: &Expr) -> Expr {
        let [q, k, v] = self.project(x, seen);
        self.merge_heads(&q.masked_attention(&k, &v, mask, self.causal))
    }

    /// Self-attention of the rows of a step, `[batch, n, width]`, to those of all positions up to the own one, by the
    /// cache's layer of that number. Fails if the layer is not causal, or has other heads than the cache.
    ///
    /// ```
    /// # use autobwd::{Builder, DType};
    /// # use autobwd_ops::nn::{KvCache, MultiHeadAttention};
    /// let net = Builder::new();
    /// let x = net.input("x", DType::F32, &[2, -1, 64]);
    /// let positions = net.input("positions", DType::I64, &[2, -1]);
    /// let attention = MultiHeadAttention::builder(&net, 64, 4).causal().build();
    /// let cache = KvCache::builder(&net, 1, [2, 1024, 4, 16]).build();
    /// let out = attention.cached(&x, 0, &cache.at(&positions));
    /// assert_eq!(out.dims().to_string(), "[2, -1, 64]");
    /// ```
    #[track_caller]
    pub fn cached(&self, x: &Expr, layer: usize, cache: &KvCacheStep<'_>) -> Expr {
        if !self.causal {
            return failed(&[x], "only causal attention can be computed step by step".into());
        }
        let [q, k, v] = self.project(x, x);
        self.merge_heads(&cache.attend(layer, &q, &k, &v, &AttentionOptions::default()))
    }

    /// Queries, keys and values by head.
    #[track_caller]
    fn project(&self, x: &Expr, seen: &Expr) -> [Expr; 3] {
        [(&self.query, x), (&self.key, seen), (&self.value, seen)]
            .map(|(layer, x)| layer.forward(x).reshape(&[0, 0, self.heads as i32, -1]))
    }

    #[track_caller]
    fn merge_heads(&self, heads: &Expr) -> Expr {
        let width = self.output.weight.dims()[0].wire() as i32;
        self.output.forward(&heads.reshape(&[0, 0, width]))
    }
}

impl MultiHeadAttentionBuilder<'_> {
    super::layer_setters!(name, dtype, init, seed);

    /// Adds a causal mask: every vector attends to itself and those before it.
    #[must_use]
    pub fn causal(self) -> Self {
        MultiHeadAttentionBuilder { causal: true, ..self }
    }

    /// Adds the parameters of four [`Linear`] layers to the program: `multi_head_attention_0.query.w`, and so on with
    /// `key`, `value` and `output`. All weights fail if the number of heads does not divide the width.
    #[track_caller]
    pub fn build(self) -> MultiHeadAttention {
        let name = layer_name(self.net, "multi_head_attention", self.name.as_deref());
        let query = self.projection(&name, "query");
        let key = self.projection(&name, "key");
        let value = self.projection(&name, "value");
        let output = self.projection(&name, "output");
        MultiHeadAttention { query, key, value, output, heads: self.heads, causal: self.causal }
    }

    #[track_caller]
    fn projection(&self, name: &str, part: &str) -> Linear {
        let MultiHeadAttentionBuilder { net, width, heads, dtype, weight, seed, .. } = *self;
        let uneven = heads == 0 || !width.is_multiple_of(heads) || i32::try_from(width).is_err();
        if uneven {
            let text = format!("a width of {width} is not divisible by {heads} heads");
            return Linear {
                weight: net.failed(Error::attr("heads", text)),
                bias: None,
                is_transposed: false,
            };
        }
        let linear = Linear::builder(net, width, width).dtype(dtype).init(weight).seed(seed);
        linear.build_as(&format!("{name}.{part}"))
    }
}
