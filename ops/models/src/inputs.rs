//! The inputs of a model, how its tokens see each other, and how a decoder sees an encoder.

use autobwd::{Builder, DType, Expr};
use autobwd_ops::{
    DimExpr, Math,
    attention::{AttentionAttrs, AttentionOptions},
    filled,
    nn::{KvCache, KvCacheStep},
    positions,
};

use crate::layers::attend;

/// The name of the keys and values that a generation keeps of an encoder.
const SOURCE_CACHE: &str = "source_kv_cache";

/// Whether a variable belongs to what a generation keeps of an encoder.
pub(crate) fn is_of_source_cache(name: &str) -> bool {
    name.split('.').any(|part| part == SOURCE_CACHE)
}

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
    /// What hides keys, or is added to scores.
    mask: Option<Expr>,
    /// The number of the document of each token, `[batch, length]`, of texts that are packed into rows.
    documents: Option<Expr>,
    step: Option<KvCacheStep<'a>>,
    keys: DimExpr,
}

/// The output of an encoder, as the layers of a decoder see it.
pub(crate) struct EncoderOutput<'a> {
    mask: Option<&'a Expr>,
    /// Of a generation: a cache, and the last position of each source, `[batch, queries]`.
    step: Option<(KvCacheStep<'a>, Expr)>,
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
                "input_features" => net.input(name, DType::F32, &[texts, height, width]),
                "source_lengths" => net.input(name, DType::I64, &[texts, 1]),
                _ => net.input(name, DType::I64, &[texts, -1]),
            };
            (name, expr)
        };
        let named: Vec<_> = names.map(declare).collect();
        let mut inputs = Inputs { named, mask: None, capacity };
        let is_token = match inputs.find("source_lengths") {
            Some(lengths) => Some(positions(net, &inputs.ids().dim(1)).less_than(lengths)),
            None => inputs.find("attention_mask").map(|mask| mask.cast(DType::Bool)),
        };
        // For all heads and queries.
        inputs.mask = is_token.map(|is_token| is_token.unsqueeze(&[1, 2]));
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

    /// The numbers of tokens of the decoder, `[batch, length]`.
    fn decoder_ids(&self) -> &Expr {
        self.find("decoder_input_ids").unwrap_or_else(|| self.ids())
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
        let cache = KvCache::builder(net, layers, [texts, tokens, heads, depth]);
        Some(cache.dtype(dtype).name("kv_cache").build())
    }

    /// The cache of a generation for the output of an encoder: of `length` positions, or as many as texts have tokens.
    pub(crate) fn source_cache(
        &self,
        net: &Builder,
        layers: usize,
        dtype: DType,
        [heads, depth]: [usize; 2],
        length: Option<usize>,
    ) -> Option<KvCache> {
        let Capacity { texts, tokens } = self.capacity?;
        let cache = KvCache::builder(net, layers, [texts, length.unwrap_or(tokens), heads, depth]);
        Some(cache.dtype(dtype).name(SOURCE_CACHE).build())
    }

    /// The tokens of a decoder, with its cache if they are a step of a generation.
    pub(crate) fn tokens<'a>(&'a self, net: &Builder, cache: Option<&'a KvCache>) -> Tokens<'a> {
        let ids = self.decoder_ids();
        let step = cache.map(|cache| cache.at(self.get("positions")));
        let packed = self.find("position_ids");
        let (positions, keys) = match (&step, self.capacity) {
            (Some(step), Some(capacity)) => (step.positions().clone(), (capacity.tokens as i64).into()),
            _ => (packed.cloned().unwrap_or_else(|| positions(net, &ids.dim(1))), ids.dim(1)),
        };
        // A document starts at each position 0.
        let is_first = |positions: &Expr| positions.cast(DType::Bool).logical_not();
        let documents = packed.map(|positions| is_first(positions).cast(DType::I64).cumsum(1));
        // The mask of an encoder and a decoder is the encoder's.
        let mask = self.mask().filter(|_| self.find("decoder_input_ids").is_none()).cloned();
        Tokens { positions, mask, documents, step, keys }
    }

    /// The output of an encoder, `[batch, length, width]`, with its cache if a decoder reads it step by step.
    pub(crate) fn source<'a>(
        &'a self,
        net: &Builder,
        encoded: &Expr,
        cache: Option<&'a KvCache>,
    ) -> EncoderOutput<'a> {
        let step = cache.map(|cache| {
            let (lengths, at) = (self.get("source_lengths"), positions(net, &encoded.dim(1)));
            let number = |n: &str| filled(net, DType::I64, n, &[1.into()]);
            // Padding has the position -1.
            let at = at.less_than(lengths).where_cond(&at, &number("-1"));
            let last = lengths - number("1");
            (cache.at(&at), last.expand_to(&[lengths.dim(0), self.decoder_ids().dim(1)]))
        });
        EncoderOutput { mask: self.mask(), step }
    }
}

impl Tokens<'_> {
    /// The positions of the tokens, one row for all texts or one for each: `[1 or batch, length]`.
    pub(crate) fn query_positions(&self) -> Expr {
        match self.step {
            Some(_) => self.positions.clone(),
            None => self.positions.unsqueeze(&[0]),
        }
    }

    /// The positions of all tokens that queries may see, `[keys]`.
    pub(crate) fn key_positions(&self, net: &Builder) -> Expr {
        positions(net, &self.keys)
    }

    /// The positions for a table of embeddings, in which padding has the row of the first position.
    pub(crate) fn unpadded_positions(&self, net: &Builder) -> Expr {
        self.positions.maximum(&filled(net, DType::I64, "0", &[1.into()]))
    }

    /// The tokens, with what is added to scores, `[1 or batch, heads, queries, keys]`, instead of a mask.
    pub(crate) fn with_bias(self, bias: Expr) -> Self {
        Tokens { mask: Some(bias), ..self }
    }

    /// Causal attention of a layer.
    pub(crate) fn attend(&self, layer: usize, [q, k, v]: [&Expr; 3], attrs: AttentionAttrs) -> Expr {
        let attrs = AttentionAttrs { causal: true, ..attrs };
        let (mask, documents) = (self.mask.clone(), self.documents.clone());
        let options = AttentionOptions { mask, documents, attrs, ..AttentionOptions::default() };
        match &self.step {
            Some(step) => step.attend(layer, q, k, v, &options),
            None => q.attention_with(k, v, &options),
        }
    }
}

impl EncoderOutput<'_> {
    /// Attention of a layer to the keys and values of the encoder's output, which a generation keeps.
    pub(crate) fn attend(&self, layer: usize, [q, k, v]: [&Expr; 3], attrs: AttentionAttrs) -> Expr {
        let Some((step, last)) = &self.step else { return attend([q, k, v], self.mask, attrs) };
        let [k, v] = step.update(layer, k, v);
        // A causal query at the last position sees the source, and nothing of the rest of the cache.
        let attrs = AttentionAttrs { causal: true, ..attrs };
        let options =
            AttentionOptions { positions: Some(last.clone()), attrs, ..AttentionOptions::default() };
        q.attention_with(&k, &v, &options)
    }
}
