//! GPT-2 (Radford et al., 2019): a decoder with learned positions.

use autobwd::Expr;
use autobwd_ops::{Math, attention::AttentionAttrs};
use serde_json::json;

use crate::{
    inputs::{Inputs, Tokens},
    layers::{Layers, join_heads, split_heads, tied},
};

/// Logits of the next token, `[batch, length, vocabulary]`.
pub(crate) fn logits(layers: &Layers<'_>, inputs: &Inputs) -> Expr {
    let Layers { net, config, .. } = layers;
    config.require("add_cross_attention", &json!(false));
    let width = config.size("n_embd", 768);
    let epsilon = config.number("layer_norm_epsilon", 1e-5);
    let (heads, count) = (config.size("n_head", 12), layers.count("n_layer", 12));
    let cache = inputs.cache(net, count, layers.dtype, [heads, config.share(width, heads)]);
    let tokens = inputs.tokens(net, cache.as_ref());

    layers.optional_scope("transformer", || {
        let words = layers.embedding("wte", config.size("vocab_size", 50_257), width);
        let places = layers.embedding("wpe", config.size("n_positions", 1024), width);
        let mut h = words.forward(inputs.ids()) + places.forward(&tokens.unpadded_positions(net));
        for i in 0..count {
            h = net.name_scope(&format!("h.{i}"), || block(layers, &tokens, i, width, &h));
        }
        tied(&layers.layer_norm("ln_f", width, epsilon).forward(&h), &words.weight)
    })
}

fn block(layers: &Layers<'_>, tokens: &Tokens<'_>, number: usize, width: usize, h: &Expr) -> Expr {
    let config = layers.config;
    let epsilon = config.number("layer_norm_epsilon", 1e-5);
    let heads = config.size("n_head", 12);
    let scale = match config.flag("scale_attn_weights", true) {
        true => 1.0 / (config.share(width, heads) as f64).sqrt(),
        false => 1.0,
    };
    let divisor = if config.flag("scale_attn_by_inverse_layer_idx", false) { number + 1 } else { 1 };
    let attrs = AttentionAttrs { scale: (scale / divisor as f64) as f32, ..AttentionAttrs::default() };

    let x = layers.layer_norm("ln_1", width, epsilon).forward(h);
    let parts = conv1d(layers, "attn.c_attn", [width, 3 * width], &x).split(&[width as i32; 3], -1);
    let [q, k, v] = [0, 1, 2].map(|part: usize| split_heads(&parts[part], heads));
    let seen = join_heads(&tokens.attend(number, [&q, &k, &v], attrs), width);
    let h = h + conv1d(layers, "attn.c_proj", [width, width], &seen);

    let inner = config.size("n_inner", 4 * width);
    let x = layers.layer_norm("ln_2", width, epsilon).forward(&h);
    let x = layers.activation("activation_function", "gelu_new").of(&conv1d(
        layers,
        "mlp.c_fc",
        [width, inner],
        &x,
    ));
    h + conv1d(layers, "mlp.c_proj", [inner, width], &x)
}

/// `x · weight + bias` with weights `[inputs, outputs]`, as the files of GPT-2 have them.
fn conv1d(layers: &Layers<'_>, name: &str, dims: [usize; 2], x: &Expr) -> Expr {
    let weight = layers.parameter(&format!("{name}.weight"), &dims);
    x.matmul(&weight) + layers.parameter(&format!("{name}.bias"), &dims[1..])
}
