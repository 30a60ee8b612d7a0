//! Whisper (Radford et al., 2022): an encoder of spectrograms and a decoder of text.

use autobwd::Expr;
use autobwd_ops::{Math, attention::AttentionAttrs, nn::Conv1d};
use serde_json::json;

use crate::{
    inputs::Inputs,
    layers::{Activation, Layers, Outputs, attend, join_heads, split_heads, tied},
};

/// The epsilon of all normalisations, which is in no configuration.
const EPSILON: f64 = 1e-5;

/// The number of bands of a spectrogram and the number of its columns: two for each position of the encoder.
pub(crate) fn spectrogram_dims(layers: &Layers<'_>) -> [usize; 3] {
    [1, layers.config.size("num_mel_bins", 80), 2 * layers.config.size("max_source_positions", 1500)]
}

/// Logits of the next token of the decoder, `[batch, decoder length, vocabulary]`.
pub(crate) fn whisper(layers: &Layers<'_>, inputs: &Inputs) -> Outputs {
    let Layers { net, config, .. } = layers;
    config.require("architectures", &json!(["WhisperForConditionalGeneration"]));
    let width = config.size("d_model", 384);
    let logits = net.name_scope("model", || {
        let encoded = net.name_scope("encoder", || {
            encoder(layers, &inputs.get("input_features").cast(layers.dtype), width)
        });
        net.name_scope("decoder", || {
            let ids = inputs.get("decoder_input_ids");
            let words = layers.embedding("embed_tokens", config.size("vocab_size", 51_865), width);
            let places = layers.embedding("embed_positions", config.size("max_target_positions", 448), width);
            let mut h = words.forward(ids) + places.forward(&autobwd_ops::positions(net, &ids.dim(1)));
            for i in 0..layers.count("decoder_layers", 4) {
                h = net.name_scope(&format!("layers.{i}"), || {
                    let heads = config.size("decoder_attention_heads", 6);
                    let h = attention(layers, ["self_attn_layer_norm", "self_attn"], heads, &h, None);
                    let h = attention(
                        layers,
                        ["encoder_attn_layer_norm", "encoder_attn"],
                        heads,
                        &h,
                        Some(&encoded),
                    );
                    feed_forward(layers, config.size("decoder_ffn_dim", 1536), width, &h)
                });
            }
            tied(&layers.layer_norm("layer_norm", width, EPSILON).forward(&h), &words.weight)
        })
    });
    vec![("logits", logits)]
}

fn encoder(layers: &Layers<'_>, features: &Expr, width: usize) -> Expr {
    let Layers { net, config, dtype, .. } = layers;
    let conv = |name: &str, inputs: usize, stride: i32, x: &Expr| {
        let conv = Conv1d::builder(net, inputs, width, 3).torch().dtype(*dtype).stride(stride).padding(1);
        Activation::Gelu.of(&conv.name(name).build().forward(x))
    };
    let x = conv("conv1", config.size("num_mel_bins", 80), 1, features);
    let x = conv("conv2", width, 2, &x).transpose(&[0, 2, 1]);
    let mut h =
        x + layers.parameter("embed_positions.weight", &[config.size("max_source_positions", 1500), width]);
    for i in 0..layers.count("encoder_layers", 4) {
        h = net.name_scope(&format!("layers.{i}"), || {
            let heads = config.size("encoder_attention_heads", 6);
            let x = layers.layer_norm("self_attn_layer_norm", width, EPSILON).forward(&h);
            let h = &h + attend_to(layers, "self_attn", heads, [&x, &x], false);
            feed_forward(layers, config.size("encoder_ffn_dim", 1536), width, &h)
        });
    }
    layers.layer_norm("layer_norm", width, EPSILON).forward(&h)
}

/// `h` plus attention of the decoder: to earlier tokens, or to the encoded sound.
fn attention(
    layers: &Layers<'_>,
    [norm, name]: [&str; 2],
    heads: usize,
    h: &Expr,
    encoded: Option<&Expr>,
) -> Expr {
    let width = layers.config.size("d_model", 384);
    let x = layers.layer_norm(norm, width, EPSILON).forward(h);
    h + attend_to(layers, name, heads, [&x, encoded.unwrap_or(&x)], encoded.is_none())
}

/// Attention whose keys have no bias.
fn attend_to(layers: &Layers<'_>, name: &str, heads: usize, [x, seen]: [&Expr; 2], causal: bool) -> Expr {
    let width = layers.config.size("d_model", 384);
    layers.config.share(width, heads);
    layers.net.name_scope(name, || {
        let [q, k, v] = [("q_proj", x), ("k_proj", seen), ("v_proj", seen)].map(|(name, x)| {
            split_heads(&layers.linear(name, [width; 2], name != "k_proj").forward(x), heads)
        });
        let attrs = AttentionAttrs { causal, ..AttentionAttrs::default() };
        let seen = join_heads(&attend([&q, &k, &v], None, attrs), width);
        layers.linear("out_proj", [width; 2], true).forward(&seen)
    })
}

fn feed_forward(layers: &Layers<'_>, inner: usize, width: usize, h: &Expr) -> Expr {
    let x = layers.layer_norm("final_layer_norm", width, EPSILON).forward(h);
    let x = layers.linear("fc1", [width, inner], true).forward(&x);
    let x = layers.activation("activation_function", "gelu").of(&x);
    h + layers.linear("fc2", [inner, width], true).forward(&x)
}
