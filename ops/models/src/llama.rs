//! Llama and its kin (Touvron et al., 2023): Mistral, Qwen 2 and 3, Gemma 3. Decoders with rotary positions, heads that
//! share keys, root mean square normalisation and gated layers.

use autobwd::Expr;
use autobwd_ops::{
    Math,
    attention::{AttentionAttrs, Rotary},
    nn::RmsNorm,
};
use serde_json::json;

use crate::{
    inputs::{Inputs, Tokens},
    layers::{Activation, Layers, join_heads, split_heads, tied},
    rotary::{RotaryKeys, rotary},
};

/// What the members of the family differ in, and their sizes.
struct Decoder<'a> {
    layers: &'a Layers<'a>,
    tokens: &'a Tokens<'a>,
    width: usize,
    inner: usize,
    heads: usize,
    key_heads: usize,
    depth: usize,
    epsilon: f64,
    activation: Activation,
    is_gemma: bool,
    /// Biases of queries, keys and values, and of the output.
    biases: [bool; 2],
    /// Whether each head of queries and keys is normalised.
    norms_heads: bool,
    scale: f32,
}

/// Logits of the next token, `[batch, length, vocabulary]`.
pub(crate) fn logits(layers: &Layers<'_>, inputs: &Inputs, family: &str) -> Expr {
    let Layers { net, config, .. } = layers;
    let is_gemma = family == "gemma3_text";
    config.require("use_bidirectional_attention", &json!(false));
    let width = config.size("hidden_size", if is_gemma { 2304 } else { 4096 });
    let heads = config.size("num_attention_heads", if is_gemma { 8 } else { 32 });
    let key_heads = match family {
        "mistral" => config.size("num_key_value_heads", 8),
        "gemma3_text" => config.size("num_key_value_heads", 4),
        _ => config.size("num_key_value_heads", heads),
    };
    if !heads.is_multiple_of(key_heads) {
        config.refuse(format!("{key_heads} heads of keys do not divide {heads} heads of queries"));
    }
    let depth = match (config.some_size("head_dim"), family) {
        (Some(depth), _) => config.head_size(depth),
        (None, "qwen3") => 128,
        (None, "gemma3_text") => 256,
        (None, _) => config.share(width, heads),
    };
    let kinds = layer_kinds(layers, family);
    let cache = inputs.cache(net, kinds.len(), layers.dtype, [key_heads, depth]);
    let tokens = inputs.tokens(net, cache.as_ref());
    let attention_bias = config.flag("attention_bias", false);
    let activation_key = if is_gemma { "hidden_activation" } else { "hidden_act" };
    let scale = if is_gemma { config.number("query_pre_attn_scalar", 256.0) } else { depth as f64 };
    let decoder = Decoder {
        layers,
        tokens: &tokens,
        width,
        inner: config.size("intermediate_size", if is_gemma { 9216 } else { 11_008 }),
        heads,
        key_heads,
        depth,
        epsilon: config.number("rms_norm_eps", 1e-6),
        activation: layers.activation(activation_key, if is_gemma { "gelu_pytorch_tanh" } else { "silu" }),
        is_gemma,
        biases: match family {
            "qwen2" => [true, false],
            "mistral" => [false; 2],
            _ => [attention_bias; 2],
        },
        norms_heads: is_gemma || family == "qwen3",
        scale: (1.0 / scale.sqrt()) as f32,
    };
    let vocabulary = config.size("vocab_size", 32_000);
    let (h, table) = net.name_scope("model", || {
        let table = layers.embedding("embed_tokens", vocabulary, width);
        let mut h = table.forward(inputs.ids());
        if is_gemma {
            h = h * (width as f64).sqrt();
        }
        for (i, kind) in kinds.iter().enumerate() {
            h = net.name_scope(&format!("layers.{i}"), || decoder.block(i, kind, &h));
        }
        (decoder.norm("norm", width).forward(&h), table)
    });
    let is_tied = config.flag("tie_word_embeddings", is_gemma) && !layers.has("lm_head.weight");
    let logits = match is_tied {
        true => tied(&h, &table.weight),
        false => layers.linear("lm_head", [width, vocabulary], false).forward(&h),
    };
    match config.value("final_logit_softcapping").is_some() {
        true => {
            let cap = config.number("final_logit_softcapping", 1.0);
            (logits / cap).tanh() * cap
        }
        false => logits,
    }
}

/// The kind of each layer: one that sees all earlier tokens, or those within a window.
fn layer_kinds(layers: &Layers<'_>, family: &str) -> Vec<&'static str> {
    let config = layers.config;
    let count = layers.count("num_hidden_layers", if family == "gemma3_text" { 26 } else { 32 });
    let kind = |slides: bool| if slides { "sliding_attention" } else { "full_attention" };
    if let Some(kinds) = config.texts("layer_types", count) {
        let known = |name: &&str| match *name {
            "sliding_attention" => kind(true),
            "full_attention" => kind(false),
            other => {
                config.refuse(format!("layers of kind `{other}`"));
                kind(false)
            }
        };
        return kinds.iter().map(known).collect();
    }
    let slides = |layer: usize| match family {
        // Absent, the window is 4096; null is none.
        "mistral" => config.allows("sliding_window"),
        "qwen2" | "qwen3" => {
            let first = config.size("max_window_layers", 28);
            config.flag("use_sliding_window", false) && config.allows("sliding_window") && layer >= first
        }
        "gemma3_text" => !(layer + 1).is_multiple_of(config.size("sliding_window_pattern", 6)),
        _ => false,
    };
    (0..count).map(|layer| kind(slides(layer))).collect()
}

impl Decoder<'_> {
    fn norm(&self, name: &str, width: usize) -> RmsNorm {
        let Layers { net, dtype, .. } = *self.layers;
        match self.is_gemma {
            false => self.layers.rms_norm(name, width, self.epsilon),
            true => {
                let norm = RmsNorm::builder(net, width).torch().shifted().dtype(dtype);
                norm.epsilon(self.epsilon).name(name).build()
            }
        }
    }

    fn block(&self, number: usize, kind: &str, h: &Expr) -> Expr {
        let normed = |name: &str, x: &Expr| self.norm(name, self.width).forward(x);
        let seen = self.attention(number, kind, &normed("input_layernorm", h));
        if self.is_gemma {
            let h = h + normed("post_attention_layernorm", &seen);
            let gated = self.gated(&normed("pre_feedforward_layernorm", &h));
            return &h + normed("post_feedforward_layernorm", &gated);
        }
        let h = h + seen;
        &h + self.gated(&normed("post_attention_layernorm", &h))
    }

    /// An activated projection times another one, projected back.
    fn gated(&self, x: &Expr) -> Expr {
        let biased = self.layers.config.flag("mlp_bias", false);
        let linear = |name: &str, dims| self.layers.linear(&format!("mlp.{name}"), dims, biased);
        let gate = self.activation.of(&linear("gate_proj", [self.width, self.inner]).forward(x));
        let x = gate * linear("up_proj", [self.width, self.inner]).forward(x);
        linear("down_proj", [self.inner, self.width]).forward(&x)
    }

    fn attention(&self, number: usize, kind: &str, x: &Expr) -> Expr {
        let Decoder { layers, tokens, width, heads, key_heads, depth, .. } = *self;
        let config = layers.config;
        let [biased, output_biased] = self.biases;
        let project = |name: &str, heads: usize| {
            let layer = layers.linear(&format!("self_attn.{name}"), [width, heads * depth], biased);
            split_heads(&layer.forward(x), heads)
        };
        let (q, k, v) =
            (project("q_proj", heads), project("k_proj", key_heads), project("v_proj", key_heads));
        let rotary = self.rotary(kind);
        let turned = |name: &str, x: Expr| {
            let x = if self.norms_heads { self.norm(name, depth).forward(&x) } else { x };
            x.rotary_embedding_with(&tokens.positions, &rotary)
        };
        let [q, k] = [turned("self_attn.q_norm", q), turned("self_attn.k_norm", k)];
        // A window of one token is the token itself.
        let window = match kind {
            "sliding_attention" => config.size("sliding_window", 4096) as i32 - 1,
            _ => -1,
        };
        let attrs = AttentionAttrs { window, scale: self.scale, ..AttentionAttrs::default() };
        let seen = join_heads(&tokens.attend(number, [&q, &k, &v], attrs), heads * depth);
        layers.linear("self_attn.o_proj", [heads * depth, width], output_biased).forward(&seen)
    }

    fn rotary(&self, kind: &str) -> Rotary {
        let keys = match (self.is_gemma, kind) {
            (true, "sliding_attention") => {
                RotaryKeys { base: "rope_local_base_freq", default: 1e4, is_scaled: false }
            }
            (true, _) => RotaryKeys { base: "rope_theta", default: 1e6, is_scaled: true },
            (false, _) => RotaryKeys { base: "rope_theta", default: 1e4, is_scaled: true },
        };
        rotary(self.layers.config, kind, &keys)
    }
}
