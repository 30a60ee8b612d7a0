//! What architectures share: layers with the names of files, activations, attention to a text.

use autobwd::{Builder, DType, Expr};
use autobwd_ops::{
    Init, Math,
    attention::{AttentionAttrs, AttentionOptions},
    nn::{Embedding, LayerNorm, Linear, RmsNorm},
};

use crate::config::Config;

/// The outputs of a model, by their names in transformers.
pub(crate) type Outputs = Vec<(&'static str, Expr)>;

/// A model under construction: its program, and what its files say.
pub(crate) struct Layers<'a> {
    pub(crate) net: &'a Builder,
    pub(crate) config: &'a Config,
    /// The names of the tensors in the files.
    pub(crate) names: &'a [String],
    pub(crate) dtype: DType,
}

impl Layers<'_> {
    /// A number of layers. Each has tensors in the files, so that there are not more layers than tensors.
    pub(crate) fn count(&self, key: &str, default: usize) -> usize {
        let (known, tensors) = (self.config.some_size(key), self.names.len());
        if let Some(count) = known.filter(|count| *count > tensors) {
            let text = format!("{count} layers (`{key}`) are more than the {tensors} tensors of the files");
            self.config.refuse(text);
        }
        known.unwrap_or(default).min(tensors)
    }

    /// Whether the files have a tensor whose name starts so.
    pub(crate) fn has(&self, prefix: &str) -> bool {
        self.names.iter().any(|name| name.starts_with(prefix))
    }

    /// Calls `body` in a name scope if the names of the files are in it: some files of a family leave it out.
    pub(crate) fn optional_scope<T>(&self, scope: &str, body: impl FnOnce() -> T) -> T {
        match self.has(&format!("{scope}.")) {
            true => self.net.name_scope(scope, body),
            false => body(),
        }
    }

    /// A linear layer, with a bias if `biased`.
    pub(crate) fn linear(&self, name: &str, [inputs, outputs]: [usize; 2], biased: bool) -> Linear {
        let layer = Linear::builder(self.net, inputs, outputs).torch().dtype(self.dtype).name(name);
        if biased { layer.build() } else { layer.bias(None).build() }
    }

    pub(crate) fn layer_norm(&self, name: &str, width: usize, epsilon: f64) -> LayerNorm {
        let layer = LayerNorm::builder(self.net, width).torch().dtype(self.dtype);
        layer.epsilon(epsilon as f32).name(name).build()
    }

    pub(crate) fn rms_norm(&self, name: &str, width: usize, epsilon: f64) -> RmsNorm {
        RmsNorm::builder(self.net, width).torch().dtype(self.dtype).epsilon(epsilon).name(name).build()
    }

    pub(crate) fn embedding(&self, name: &str, rows: usize, width: usize) -> Embedding {
        Embedding::builder(self.net, rows, width).torch().dtype(self.dtype).name(name).build()
    }

    /// A parameter of that shape, 0 if it is new.
    pub(crate) fn parameter(&self, name: &str, dims: &[usize]) -> Expr {
        self.constant_at_first(name, dims, 0.0)
    }

    /// The scale of a normalisation, 1 if it is new.
    pub(crate) fn scale(&self, name: &str, width: usize) -> Expr {
        self.constant_at_first(name, &[width], 1.0)
    }

    fn constant_at_first(&self, name: &str, dims: &[usize], value: f64) -> Expr {
        let init = |x: &Expr| Init::Constant(value).emit(x, 0);
        self.net.parameter(&self.net.scoped(name), self.dtype, dims, init)
    }

    /// The activation under a key.
    pub(crate) fn activation(&self, key: &str, default: &str) -> Activation {
        let name = self.config.text(key, default);
        Activation::named(name).unwrap_or_else(|| {
            self.config.refuse(format!("`{key}` is `{name}`, an unknown activation"));
            Activation::Relu
        })
    }
}

/// An activation function of configurations.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Activation {
    Gelu,
    GeluTanh,
    QuickGelu,
    Silu,
    Relu,
    SquaredRelu,
    Tanh,
}

impl Activation {
    pub(crate) fn named(name: &str) -> Option<Activation> {
        Some(match name {
            "gelu" => Activation::Gelu,
            "gelu_new" | "gelu_pytorch_tanh" | "gelu_fast" => Activation::GeluTanh,
            "quick_gelu" => Activation::QuickGelu,
            "silu" | "swish" => Activation::Silu,
            "relu" => Activation::Relu,
            "relu2" => Activation::SquaredRelu,
            "tanh" => Activation::Tanh,
            _ => return None,
        })
    }

    pub(crate) fn of(self, x: &Expr) -> Expr {
        match self {
            Activation::Gelu => x.gelu(false),
            Activation::GeluTanh => x.gelu(true),
            Activation::QuickGelu => x * (x * 1.702).sigmoid(),
            Activation::Silu => x.silu(),
            Activation::Relu => x.relu(),
            Activation::SquaredRelu => x.relu().square(),
            Activation::Tanh => x.tanh(),
        }
    }
}

/// An attention layer with the names of files: projections of queries, keys and values by head, and of the result.
pub(crate) struct Attention<'a> {
    /// The names of the projections: queries, keys, values, result.
    pub(crate) names: [&'a str; 4],
    /// Which of them have a bias.
    pub(crate) biased: [bool; 4],
    pub(crate) width: usize,
    pub(crate) heads: usize,
    /// The size of a head.
    pub(crate) depth: usize,
}

impl Attention<'_> {
    /// Attention of `x` to `seen`, both `[batch, length, width]`: `attend` gets queries, keys and values by head.
    pub(crate) fn forward(
        &self,
        layers: &Layers<'_>,
        [x, seen]: [&Expr; 2],
        attend: impl FnOnce([&Expr; 3]) -> Expr,
    ) -> Expr {
        let Attention { names, biased, width, heads, depth } = *self;
        let project = |part: usize, x: &Expr, dims| layers.linear(names[part], dims, biased[part]).forward(x);
        let inner = heads * depth;
        let by_head = |part: usize, x: &Expr| split_heads(&project(part, x, [width, inner]), heads);
        let [q, k, v] = [by_head(0, x), by_head(1, seen), by_head(2, seen)];
        project(3, &join_heads(&attend([&q, &k, &v]), inner), [inner, width])
    }
}

/// `x · tableᵀ`: the output layer of a model that shares its table of embeddings.
#[track_caller]
pub(crate) fn tied(x: &Expr, table: &Expr) -> Expr {
    Linear { weight: table.clone(), bias: None, is_transposed: true }.forward(x)
}

/// `[batch, length, width]` by head, `[batch, length, heads, width / heads]`.
#[track_caller]
pub(crate) fn split_heads(x: &Expr, heads: usize) -> Expr {
    x.reshape(&[0, 0, heads as i32, -1])
}

/// `[batch, length, heads, d]` as `[batch, length, heads * d]`.
#[track_caller]
pub(crate) fn join_heads(x: &Expr, width: usize) -> Expr {
    x.reshape(&[0, 0, width as i32])
}

/// Attention by head to the keys that a mask leaves.
#[track_caller]
pub(crate) fn attend([q, k, v]: [&Expr; 3], mask: Option<&Expr>, attrs: AttentionAttrs) -> Expr {
    q.attention_with(k, v, &AttentionOptions { mask: mask.cloned(), attrs, ..AttentionOptions::default() })
}
