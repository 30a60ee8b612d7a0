//! Options of attention.

use autobwd::{Attrs, Expr, Result};

use crate::kernel_helpers::finite;

/// The attributes of attention.
#[derive(Attrs, Clone, Debug)]
pub struct AttentionAttrs {
    /// Causal mask: a query sees no key after its own position. The last query is at the position of the last key.
    #[attr(default = false)]
    pub causal: bool,
    /// The largest distance between the positions of a query and a key that it sees (sliding window); −1 for any.
    #[attr(default = -1, min = -1)]
    pub window: i32,
    /// The factor of products of queries and keys; 0 for `1 / √d`.
    #[attr(default = 0.0)]
    pub scale: f32,
    /// Soft cap `c` of scores, which become `c · tanh(score / c)`; 0 for none.
    #[attr(default = 0.0, min = 0.0)]
    pub softcap: f32,
    /// The probability with which a weight is dropped; others are divided by one minus the probability.
    #[attr(default = 0.0, min = 0.0, max = 1.0)]
    pub dropout_prob: f32,
    /// Seed of dropped weights; 0 is a seed like any other.
    #[attr(default = 0)]
    pub seed: i32,
}

impl AttentionAttrs {
    pub(super) fn check(&self) -> Result<()> {
        finite("scale", self.scale)?;
        finite("softcap", self.softcap)
    }

    /// The factor of products of queries and keys of `depth` columns.
    pub(super) fn scale_of(&self, depth: usize) -> f64 {
        if self.scale == 0.0 { 1.0 / (depth.max(1) as f64).sqrt() } else { self.scale.into() }
    }

    /// The factor of weights that are not dropped.
    pub(super) fn kept_factor(&self) -> f64 {
        let kept = 1.0 - f64::from(self.dropout_prob);
        if kept > 0.0 { 1.0 / kept } else { 0.0 }
    }
}

/// Options of [`Math::attention_with`](crate::Math::attention_with): what limits and shifts scores.
///
/// ```
/// use autobwd::{Builder, DType};
/// use autobwd_ops::{Math, attention::{AttentionAttrs, AttentionOptions}};
///
/// let net = Builder::new();
/// // Eight heads of queries share two heads of keys and values.
/// let q = net.input("q", DType::F32, &[-1, 512, 8, 64]);
/// let k = net.input("k", DType::F32, &[-1, 512, 2, 64]);
/// let v = net.input("v", DType::F32, &[-1, 512, 2, 64]);
/// let documents = net.input("documents", DType::I64, &[-1, 512]);
/// let options = AttentionOptions {
///     documents: Some(documents),
///     attrs: AttentionAttrs { causal: true, window: 127, ..AttentionAttrs::default() },
///     ..AttentionOptions::default()
/// };
/// assert_eq!(q.attention_with(&k, &v, &options).dims().to_string(), "[-1, 512, 8, 64]");
/// ```
#[derive(Clone, Debug, Default)]
pub struct AttentionOptions {
    /// Of a shape that broadcasts to `[batch, heads, queries, keys]`. If bool, a query sees the keys where it is true;
    /// numbers are added to scores, and `-∞` hides a key.
    pub mask: Option<Expr>,
    /// The number of the document of each key, int64 `[batch, keys]`, for documents packed into one row: a query sees
    /// the keys of its own document. The last query belongs to the document of the last key.
    pub documents: Option<Expr>,
    /// Positions of the queries among the keys, int64 `[batch, queries]`, instead of the last ones: what a causal mask,
    /// a window and documents go by. A query at a negative position is before all keys.
    pub positions: Option<Expr>,
    /// Seed of dropped weights instead of [`AttentionAttrs::seed`]: one int64 or int32 number.
    pub seed: Option<Expr>,
    /// Options that are constants.
    pub attrs: AttentionAttrs,
}
