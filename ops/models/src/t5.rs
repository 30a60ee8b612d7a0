//! T5 (Raffel et al., 2020): an encoder and a decoder with biases by relative position.

use autobwd::{DType, Expr, New};
use autobwd_ops::{Math, attention::AttentionAttrs, fill::AssignValue, filled, positions};
use serde_json::Value;

use crate::{
    inputs::Inputs,
    layers::{Activation, Attention, Layers, Outputs, attend, tied},
};

/// The largest distance with a bucket of its own: a table has one number for each.
const FARTHEST: usize = 1 << 16;

/// Sizes of the model.
struct T5<'a> {
    layers: &'a Layers<'a>,
    width: usize,
    depth: usize,
    inner: usize,
    heads: usize,
    epsilon: f64,
    activation: Activation,
    is_gated: bool,
}

/// Logits of the next token of the decoder, `[batch, decoder length, vocabulary]`.
pub(crate) fn t5(layers: &Layers<'_>, inputs: &Inputs) -> Outputs {
    let config = layers.config;
    // `gated-gelu` is a gate with the activation `gelu_new`. The keys of newer files say it directly, and win.
    let form = config.text("feed_forward_proj", "relu");
    let (is_gated, name) = form.strip_prefix("gated-").map_or((false, form), |name| (true, name));
    let name = if form == "gated-gelu" { "gelu_new" } else { name };
    let model = T5 {
        layers,
        width: config.size("d_model", 512),
        depth: config.size("d_kv", 64),
        inner: config.size("d_ff", 2048),
        heads: config.size("num_heads", 8),
        epsilon: config.number("layer_norm_epsilon", 1e-6),
        activation: layers.activation("dense_act_fn", name),
        is_gated: config.flag("is_gated_act", is_gated),
    };
    if config.architecture("T5ForConditionalGeneration") != "T5ForConditionalGeneration" {
        config.refuse(format!("the architecture `{}`", config.architecture("")));
        return vec![];
    }
    let vocabulary = config.size("vocab_size", 32_128);
    let shared = layers.embedding("shared", vocabulary, model.width);
    let count = layers.count("num_layers", 6);
    let encoded = model.encoder(&shared.forward(inputs.ids()), count, inputs);
    let count = layers.count("num_decoder_layers", count);
    let h = model.decoder(&shared.forward(inputs.get("decoder_input_ids")), count, inputs, &encoded);
    // Newer files say that they are tied, whatever they are.
    let is_scaled = match config.value("scale_decoder_outputs") {
        Some(_) => config.flag("scale_decoder_outputs", true),
        None => config.value("tie_word_embeddings").and_then(Value::as_bool) != Some(false),
    };
    let h = if is_scaled { h * (1.0 / (model.width as f64).sqrt()) } else { h };
    let logits = match layers.has("lm_head.weight") {
        true => layers.linear("lm_head", [model.width, vocabulary], false).forward(&h),
        false => tied(&h, &shared.weight),
    };
    vec![("logits", logits)]
}

impl T5<'_> {
    fn encoder(&self, x: &Expr, count: usize, inputs: &Inputs) -> Expr {
        let net = self.layers.net;
        net.name_scope("encoder", || {
            let at = positions(net, &x.dim(1));
            let bias = self.bias([&at.unsqueeze(&[0]), &at], true);
            let mask = inputs.mask().map_or(bias.clone(), |mask| self.hidden(mask, &bias));
            let mut h = x.clone();
            for i in 0..count {
                h = net.name_scope(&format!("block.{i}.layer"), || {
                    let h = self.attention(["0.layer_norm", "0.SelfAttention"], &h, None, |qkv| {
                        attend(qkv, Some(&mask), unscaled())
                    });
                    self.feed_forward("1", &h)
                });
            }
            self.norm("final_layer_norm", &h)
        })
    }

    fn decoder(&self, x: &Expr, count: usize, inputs: &Inputs, encoded: &Expr) -> Expr {
        let Layers { net, dtype, .. } = *self.layers;
        let head_dims = [self.heads, self.depth];
        let cache = inputs.cache(net, count, dtype, head_dims);
        let source_cache = inputs.source_cache(net, count, dtype, head_dims, None);
        let source = inputs.source(net, encoded, source_cache.as_ref());
        let tokens = inputs.tokens(net, cache.as_ref());
        net.name_scope("decoder", || {
            let bias = self.bias([&tokens.query_positions(), &tokens.key_positions(net)], false);
            let tokens = tokens.with_bias(bias);
            let mut h = x.clone();
            for i in 0..count {
                h = net.name_scope(&format!("block.{i}.layer"), || {
                    let h = self.attention(["0.layer_norm", "0.SelfAttention"], &h, None, |qkv| {
                        tokens.attend(i, qkv, unscaled())
                    });
                    let names = ["1.layer_norm", "1.EncDecAttention"];
                    let h = self.attention(names, &h, Some(encoded), |qkv| source.attend(i, qkv, unscaled()));
                    self.feed_forward("2", &h)
                });
            }
            self.norm("final_layer_norm", &h)
        })
    }

    fn norm(&self, name: &str, x: &Expr) -> Expr {
        self.layers.rms_norm(name, self.width, self.epsilon).forward(x)
    }

    /// `h` plus the layers for each token alone.
    fn feed_forward(&self, part: &str, h: &Expr) -> Expr {
        let T5 { layers, width, inner, activation, .. } = *self;
        let x = &self.norm(&format!("{part}.layer_norm"), h);
        let linear = |name: &str, dims| layers.linear(&format!("{part}.DenseReluDense.{name}"), dims, false);
        let x = match self.is_gated {
            true => {
                let gate = activation.of(&linear("wi_0", [width, inner]).forward(x));
                gate * linear("wi_1", [width, inner]).forward(x)
            }
            false => activation.of(&linear("wi", [width, inner]).forward(x)),
        };
        h + linear("wo", [inner, width]).forward(&x)
    }

    /// `h` plus its attention, to itself or to the output of the encoder.
    fn attention(
        &self,
        [norm, name]: [&str; 2],
        h: &Expr,
        encoded: Option<&Expr>,
        attend: impl FnOnce([&Expr; 3]) -> Expr,
    ) -> Expr {
        let T5 { layers, width, depth, heads, .. } = *self;
        let x = self.norm(norm, h);
        let layer = Attention { names: ["q", "k", "v", "o"], biased: [false; 4], width, heads, depth };
        let seen = encoded.unwrap_or(&x);
        h + layers.net.name_scope(name, || layer.forward(layers, [&x, seen], attend))
    }

    /// What is added to scores, `[1 or batch, heads, queries, keys]`: a learned number for each bucket of distances from
    /// positions of queries, `[1 or batch, queries]`, to those of keys, `[keys]`. The bias of the first block serves all.
    fn bias(&self, [queries, keys]: [&Expr; 2], both: bool) -> Expr {
        let Layers { net, config, .. } = self.layers;
        let count = config.size("relative_attention_num_buckets", 32);
        let far = config.size("relative_attention_max_distance", 128);
        if far > FARTHEST {
            config.refuse(format!("`relative_attention_max_distance` is {far}, more than {FARTHEST}"));
        }
        let far = far.min(FARTHEST) as i64;
        let name = "block.0.layer.0.SelfAttention.relative_attention_bias";
        let table = self.layers.embedding(name, count, self.heads);
        let buckets: Vec<i64> = (-far..=far).map(|offset| bucket(offset, both, count as i64, far)).collect();
        let buckets = AssignValue {
            out: New,
            shape: vec![buckets.len() as i32],
            dtype: DType::I64,
            bool_values: vec![],
            fp32_values: vec![],
            int32_values: vec![],
            int64_values: buckets,
            fp64_values: vec![],
        };
        let by_offset = table.forward(&net.emit(buckets).out);
        let offsets = keys - queries.unsqueeze(&[2]);
        let far = |sign: i64| filled(net, DType::I64, &(sign * far).to_string(), &[1.into()]);
        let rows = offsets.maximum(&far(-1)).minimum(&far(1)) + far(1);
        rows.embedding(&by_offset).transpose(&[0, 3, 1, 2])
    }

    /// The bias, with `-∞` where a mask hides a key.
    fn hidden(&self, mask: &Expr, bias: &Expr) -> Expr {
        let hidden = filled(self.layers.net, bias.dtype(), "-inf", &[1.into()]);
        mask.where_cond(bias, &hidden)
    }
}

/// Attention whose scores are the products as they are.
fn unscaled() -> AttentionAttrs {
    AttentionAttrs { scale: 1.0, ..AttentionAttrs::default() }
}

/// The bucket of an offset of a key: by sign if keys on both sides are seen; one for each short distance, and
/// logarithmic ones for longer distances.
fn bucket(offset: i64, both: bool, count: i64, far: i64) -> i64 {
    let (count, first) = match both {
        true => (count / 2, if offset > 0 { count / 2 } else { 0 }),
        false => (count, 0),
    };
    let distance = if both { offset.abs() } else { (-offset).max(0) };
    let exact = count / 2;
    if distance < exact {
        return first + distance;
    }
    // In 32 bits, as the authors' program.
    let steps = libm::logf(distance as f32 / exact as f32) / libm::log(far as f64 / exact as f64) as f32;
    first + (exact + (steps * (count - exact) as f32) as i64).min(count - 1)
}
