//! Whisper (Radford et al., 2022): an encoder of spectrograms and a decoder of text.

use autobwd::Expr;
use autobwd_ops::{Math, attention::AttentionAttrs, nn::Conv1d};
use serde_json::json;

use crate::{
    inputs::Inputs,
    layers::{Activation, Attention, Layers, Outputs, attend, tied},
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
        net.name_scope("decoder", || decoder(layers, inputs, &encoded, width))
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
            let names = ["self_attn_layer_norm", "self_attn"];
            let h =
                attention(layers, names, heads, &h, None, |qkv| attend(qkv, None, AttentionAttrs::default()));
            feed_forward(layers, config.size("encoder_ffn_dim", 1536), width, &h)
        });
    }
    layers.layer_norm("layer_norm", width, EPSILON).forward(&h)
}

fn decoder(layers: &Layers<'_>, inputs: &Inputs, encoded: &Expr, width: usize) -> Expr {
    let Layers { net, config, dtype, .. } = *layers;
    let heads = config.size("decoder_attention_heads", 6);
    let (count, head_dims) = (layers.count("decoder_layers", 4), [heads, config.share(width, heads)]);
    let cache = inputs.cache(net, count, dtype, head_dims);
    let length = config.size("max_source_positions", 1500);
    let source_cache = inputs.source_cache(net, count, dtype, head_dims, Some(length));
    let source = inputs.source(net, encoded, source_cache.as_ref());
    let tokens = inputs.tokens(net, cache.as_ref());

    let words = layers.embedding("embed_tokens", config.size("vocab_size", 51_865), width);
    let places = layers.embedding("embed_positions", config.size("max_target_positions", 448), width);
    let places = places.forward(&tokens.unpadded_positions(net));
    let mut h = words.forward(inputs.get("decoder_input_ids")) + places;
    for i in 0..count {
        h = net.name_scope(&format!("layers.{i}"), || {
            let names = ["self_attn_layer_norm", "self_attn"];
            let attrs = AttentionAttrs::default();
            let h = attention(layers, names, heads, &h, None, |qkv| tokens.attend(i, qkv, attrs.clone()));
            let names = ["encoder_attn_layer_norm", "encoder_attn"];
            let h = attention(layers, names, heads, &h, Some(encoded), |qkv| source.attend(i, qkv, attrs));
            feed_forward(layers, config.size("decoder_ffn_dim", 1536), width, &h)
        });
    }
    tied(&layers.layer_norm("layer_norm", width, EPSILON).forward(&h), &words.weight)
}

/// `h` plus its attention, to itself or to the encoded sound. Keys have no bias.
fn attention(
    layers: &Layers<'_>,
    [norm, name]: [&str; 2],
    heads: usize,
    h: &Expr,
    encoded: Option<&Expr>,
    attend: impl FnOnce([&Expr; 3]) -> Expr,
) -> Expr {
    let width = layers.config.size("d_model", 384);
    let x = layers.layer_norm(norm, width, EPSILON).forward(h);
    let layer = Attention {
        names: ["q_proj", "k_proj", "v_proj", "out_proj"],
        biased: [true, false, true, true],
        width,
        heads,
        depth: layers.config.share(width, heads),
    };
    let seen = encoded.unwrap_or(&x);
    h + layers.net.name_scope(name, || layer.forward(layers, [&x, seen], attend))
}

fn feed_forward(layers: &Layers<'_>, inner: usize, width: usize, h: &Expr) -> Expr {
    let x = layers.layer_norm("final_layer_norm", width, EPSILON).forward(h);
    let x = layers.linear("fc1", [width, inner], true).forward(&x);
    let x = layers.activation("activation_function", "gelu").of(&x);
    h + layers.linear("fc2", [inner, width], true).forward(&x)
}
