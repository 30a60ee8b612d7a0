//! T5 (Raffel et al., 2020): an encoder and a decoder with biases by relative position.

use autobwd::{DType, Expr, New};
use autobwd_ops::{Math, attention::AttentionAttrs, fill::AssignValue, filled, positions};
use serde_json::Value;

use crate::{
    inputs::Inputs,
    layers::{Activation, Layers, Outputs, attend, join_heads, split_heads, tied},
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
    let encoded = model.stack("encoder", &shared.forward(inputs.ids()), count, inputs, None);
    let decoder_ids = inputs.get("decoder_input_ids");
    let count = layers.count("num_decoder_layers", count);
    let h = model.stack("decoder", &shared.forward(decoder_ids), count, inputs, Some(&encoded));
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
    fn stack(&self, name: &str, x: &Expr, count: usize, inputs: &Inputs, encoded: Option<&Expr>) -> Expr {
        let T5 { layers, width, epsilon, .. } = *self;
        let net = layers.net;
        net.name_scope(name, || {
            // The bias of the first block serves all.
            let bias = net.name_scope("block.0.layer.0.SelfAttention", || self.bias(x, encoded.is_none()));
            let mask = match (encoded, inputs.mask()) {
                (None, Some(mask)) => self.hidden(mask, &bias),
                _ => bias,
            };
            let mut h = x.clone();
            for i in 0..count {
                h = net.name_scope(&format!("block.{i}.layer"), || self.block(&h, &mask, inputs, encoded));
            }
            layers.rms_norm("final_layer_norm", width, epsilon).forward(&h)
        })
    }

    fn block(&self, h: &Expr, mask: &Expr, inputs: &Inputs, encoded: Option<&Expr>) -> Expr {
        let norm = |name: &str, x: &Expr| self.layers.rms_norm(name, self.width, self.epsilon).forward(x);
        let x = norm("0.layer_norm", h);
        let mut h = h + self.attention("0.SelfAttention", [&x, &x], Some(mask), encoded.is_some());
        if let Some(encoded) = encoded {
            let x = norm("1.layer_norm", &h);
            h = &h + self.attention("1.EncDecAttention", [&x, encoded], inputs.mask(), false);
        }
        let last = if encoded.is_some() { "2" } else { "1" };
        let x = norm(&format!("{last}.layer_norm"), &h);
        &h + self.layers.net.name_scope(&format!("{last}.DenseReluDense"), || self.feed_forward(&x))
    }

    fn feed_forward(&self, x: &Expr) -> Expr {
        let T5 { layers, width, inner, activation, .. } = *self;
        let linear = |name: &str, dims| layers.linear(name, dims, false);
        let x = match self.is_gated {
            true => {
                let gate = activation.of(&linear("wi_0", [width, inner]).forward(x));
                gate * linear("wi_1", [width, inner]).forward(x)
            }
            false => activation.of(&linear("wi", [width, inner]).forward(x)),
        };
        linear("wo", [inner, width]).forward(&x)
    }

    /// Attention without a scale.
    fn attention(&self, name: &str, [x, seen]: [&Expr; 2], mask: Option<&Expr>, causal: bool) -> Expr {
        let T5 { layers, width, depth, heads, .. } = *self;
        layers.net.name_scope(name, || {
            let [q, k, v] = [("q", x), ("k", seen), ("v", seen)].map(|(name, x)| {
                split_heads(&layers.linear(name, [width, heads * depth], false).forward(x), heads)
            });
            let attrs = AttentionAttrs { causal, scale: 1.0, ..AttentionAttrs::default() };
            let seen = join_heads(&attend([&q, &k, &v], mask, attrs), heads * depth);
            layers.linear("o", [heads * depth, width], false).forward(&seen)
        })
    }

    /// What is added to scores, `[1, heads, length, length]`: a learned number for each bucket of distances.
    fn bias(&self, x: &Expr, both: bool) -> Expr {
        let Layers { net, config, .. } = self.layers;
        let count = config.size("relative_attention_num_buckets", 32);
        let far = config.size("relative_attention_max_distance", 128);
        if far > FARTHEST {
            config.refuse(format!("`relative_attention_max_distance` is {far}, more than {FARTHEST}"));
        }
        let far = far.min(FARTHEST) as i64;
        let table = self.layers.embedding("relative_attention_bias", count, self.heads);
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
        let at = positions(net, &x.dim(1));
        let offsets = at.unsqueeze(&[0]) - at.unsqueeze(&[1]);
        let far = |sign: i64| filled(net, DType::I64, &(sign * far).to_string(), &[1.into()]);
        let rows = offsets.maximum(&far(-1)).minimum(&far(1)) + far(1);
        rows.embedding(&by_offset).transpose(&[2, 0, 1]).unsqueeze(&[0])
    }

    /// The bias, with `-∞` where a mask hides a key.
    fn hidden(&self, mask: &Expr, bias: &Expr) -> Expr {
        let hidden = filled(self.layers.net, bias.dtype(), "-inf", &[1.into()]);
        mask.where_cond(bias, &hidden)
    }
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
