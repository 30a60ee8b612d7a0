//! The inputs of a model, and how its tokens see each other.

use autobwd::{Builder, DType, Expr};
use autobwd_ops::{
    Math,
    attention::{AttentionAttrs, AttentionOptions},
    nn::{KvCache, KvCacheStep},
    positions,
};

/// The number of texts of a generation, and the number of tokens that each may have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Capacity {
    pub(crate) texts: usize,
    pub(crate) tokens: usize,
}

/// The declared inputs, by their names in transformers.
pub(crate) struct Inputs {
    pub(crate) named: Vec<(&'static str, Expr)>,
    mask: Option<Expr>,
    /// Of a generation, step by step.
    capacity: Option<Capacity>,
}

/// The tokens of a decoder: a whole text, or a step of a generation.
pub(crate) struct Tokens<'a> {
    /// Positions of the tokens, `[length]` or `[batch, length]`.
    pub(crate) positions: Expr,
    mask: Option<&'a Expr>,
    /// The number of the document of each token, `[batch, length]`, of texts that are packed into rows.
    documents: Option<Expr>,
    step: Option<KvCacheStep<'a>>,
}

impl Inputs {
    /// Declares inputs of these names; images and spectrograms have these dimensions.
    pub(crate) fn declare(
        net: &Builder,
        names: impl Iterator<Item = &'static str>,
        dims: [usize; 3],
        capacity: Option<Capacity>,
    ) -> Inputs {
        let texts = capacity.map_or(-1, |capacity| capacity.texts as i64);
        let declare = |name: &'static str| {
            let [channels, height, width] = dims.map(|n| n as i64);
            let expr = match name {
                "pixel_values" => net.input(name, DType::F32, &[-1, channels, height, width]),
                "input_features" => net.input(name, DType::F32, &[-1, height, width]),
                _ => net.input(name, DType::I64, &[texts, -1]),
            };
            (name, expr)
        };
        let named: Vec<_> = names.map(declare).collect();
        let mut inputs = Inputs { named, mask: None, capacity };
        // For all heads and queries.
        inputs.mask = inputs.find("attention_mask").map(|mask| mask.cast(DType::Bool).unsqueeze(&[1, 2]));
        inputs
    }

    pub(crate) fn find(&self, name: &str) -> Option<&Expr> {
        self.named.iter().find(|(known, _)| *known == name).map(|(_, input)| input)
    }

    /// An input that the family has: its first one otherwise, which is of another kind.
    pub(crate) fn get(&self, name: &str) -> &Expr {
        self.find(name).unwrap_or(&self.named[0].1)
    }

    /// The numbers of tokens, `[batch, length]`.
    pub(crate) fn ids(&self) -> &Expr {
        self.get("input_ids")
    }

    /// Which tokens are no padding, `[batch, 1, 1, length]`, if that is an input.
    pub(crate) fn mask(&self) -> Option<&Expr> {
        self.mask.as_ref()
    }

    /// The cache of a generation, for so many layers with these heads of keys and their sizes.
    pub(crate) fn cache(
        &self,
        net: &Builder,
        layers: usize,
        dtype: DType,
        [heads, depth]: [usize; 2],
    ) -> Option<KvCache> {
        let Capacity { texts, tokens } = self.capacity?;
        Some(
            KvCache::builder(net, layers, [texts, tokens, heads, depth])
                .dtype(dtype)
                .name("kv_cache")
                .build(),
        )
    }

    /// The tokens of a decoder, with its cache if they are a step of a generation.
    pub(crate) fn tokens<'a>(&'a self, net: &Builder, cache: Option<&'a KvCache>) -> Tokens<'a> {
        let step = cache.map(|cache| cache.at(self.get("positions")));
        let packed = self.find("position_ids");
        let positions = match (&step, packed) {
            (Some(step), _) => step.positions().clone(),
            (None, Some(packed)) => packed.clone(),
            (None, None) => positions(net, &self.ids().dim(1)),
        };
        // A document starts at each position 0.
        let is_first = |positions: &Expr| positions.cast(DType::Bool).logical_not();
        let documents = packed.map(|positions| is_first(positions).cast(DType::I64).cumsum(1));
        Tokens { positions, mask: self.mask(), documents, step }
    }
}

impl Tokens<'_> {
    /// Causal attention of a layer.
    pub(crate) fn attend(&self, layer: usize, [q, k, v]: [&Expr; 3], attrs: AttentionAttrs) -> Expr {
        let attrs = AttentionAttrs { causal: true, ..attrs };
        let (mask, documents) = (self.mask.cloned(), self.documents.clone());
        let options = AttentionOptions { mask, documents, attrs, ..AttentionOptions::default() };
        match &self.step {
            Some(step) => step.attend(layer, q, k, v, &options),
            None => q.attention_with(k, v, &options),
        }
    }
}
