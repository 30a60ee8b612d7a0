//! ModernBERT (Warner et al., 2024): an encoder with rotary positions, gated layers and windows.

use autobwd::Expr;
use autobwd_ops::{
    Math,
    attention::AttentionAttrs,
    filled,
    nn::{Affine, LayerNorm},
    positions,
};
use serde_json::json;

use crate::{
    bert::first_token,
    inputs::Inputs,
    layers::{Activation, Layers, Outputs, attend, join_heads, split_heads, tied},
    rotary::{RotaryKeys, rotary},
};

/// ModernBERT with the head of its architecture.
pub(crate) fn modernbert(layers: &Layers<'_>, inputs: &Inputs) -> Outputs {
    let Layers { net, config, .. } = layers;
    config.require("sparse_prediction", &json!(false));
    let (width, vocabulary) = (config.size("hidden_size", 768), config.size("vocab_size", 50_368));
    let kinds = layer_kinds(layers);
    let (words, h) = layers.optional_scope("model", || {
        let words = layers.embedding("embeddings.tok_embeddings", vocabulary, width);
        let mut h = norm(layers, "embeddings.norm", width, &words.forward(inputs.ids()));
        for (i, kind) in kinds.iter().enumerate() {
            h = net.name_scope(&format!("layers.{i}"), || block(layers, inputs, i, kind, width, &h));
        }
        (words, norm(layers, "final_norm", width, &h))
    });
    let head = |x: &Expr| {
        let biased = config.flag("classifier_bias", false);
        let activation = layers.activation("classifier_activation", "gelu");
        let x = activation.of(&layers.linear("head.dense", [width, width], biased).forward(x));
        norm(layers, "head.norm", width, &x)
    };
    let classifier = |x: &Expr| layers.linear("classifier", [width, config.classes()], true).forward(x);
    match config.architecture("ModernBertModel") {
        "ModernBertForMaskedLM" => {
            let logits = tied(&head(&h), &words.weight);
            let biased = config.flag("decoder_bias", true);
            let bias = biased.then(|| layers.parameter("decoder.bias", &[vocabulary]));
            vec![("logits", bias.map_or(logits.clone(), |bias| logits + bias))]
        }
        "ModernBertForSequenceClassification" => {
            config.require("classifier_pooling", &json!("cls"));
            vec![("logits", classifier(&head(&first_token(&h))))]
        }
        "ModernBertForTokenClassification" => vec![("logits", classifier(&head(&h)))],
        "ModernBertModel" => vec![("last_hidden_state", h)],
        other => {
            config.refuse(format!("the architecture `{other}`"));
            vec![]
        }
    }
}

/// Whether layers see the whole text, or those within a window: every third one sees it all.
fn layer_kinds(layers: &Layers<'_>) -> Vec<String> {
    let config = layers.config;
    let count = layers.count("num_hidden_layers", 22);
    if let Some(kinds) = config.texts("layer_types", count) {
        return kinds.iter().map(ToString::to_string).collect();
    }
    let every = config.size("global_attn_every_n_layers", 3);
    let kind = |i: usize| if i.is_multiple_of(every) { "full_attention" } else { "sliding_attention" };
    (0..count).map(|i| kind(i).to_string()).collect()
}

fn block(layers: &Layers<'_>, inputs: &Inputs, number: usize, kind: &str, width: usize, h: &Expr) -> Expr {
    let config = layers.config;
    let (heads, inner) = (config.size("num_attention_heads", 12), config.size("intermediate_size", 1152));
    if config.share(width, heads) * heads != width {
        // The list of obstacles says why, and nothing large is built.
        return h.clone();
    }
    // The first layer reads what the embeddings have normalised.
    let x = if number == 0 { h.clone() } else { norm(layers, "attn_norm", width, h) };
    let biased = config.flag("attention_bias", false);
    let parts = layers.linear("attn.Wqkv", [width, 3 * width], biased).forward(&x);
    let parts = parts.split(&[width as i32; 3], -1);
    let [q, k, v] = [0, 1, 2].map(|part: usize| split_heads(&parts[part], heads));
    let slides = kind == "sliding_attention";
    let keys = match slides {
        true => RotaryKeys { base: "local_rope_theta", default: 1e4, is_scaled: false },
        false => RotaryKeys { base: "global_rope_theta", default: 160_000.0, is_scaled: true },
    };
    let rotary = rotary(config, kind, &keys);
    let places = positions(layers.net, &inputs.ids().dim(1));
    let [q, k] = [q, k].map(|x| x.rotary_embedding_with(&places, &rotary));
    let window = if slides { (config.size("local_attention", 128) / 2) as i32 } else { -1 };
    let attrs = AttentionAttrs { window, ..AttentionAttrs::default() };
    let seen = join_heads(&attend([&q, &k, &v], inputs.mask(), attrs), width);
    let h = h + layers.linear("attn.Wo", [width, width], biased).forward(&seen);

    let biased = config.flag("mlp_bias", false);
    let x = norm(layers, "mlp_norm", width, &h);
    let parts = layers.linear("mlp.Wi", [width, 2 * inner], biased).forward(&x).split(&[inner as i32; 2], -1);
    let gate: Activation = layers.activation("hidden_activation", "gelu");
    &h + layers.linear("mlp.Wo", [inner, width], biased).forward(&(gate.of(&parts[0]) * &parts[1]))
}

/// Layer normalisation, which has a bias only if the configuration says so.
fn norm(layers: &Layers<'_>, name: &str, width: usize, x: &Expr) -> Expr {
    let Layers { net, config, dtype, .. } = layers;
    let epsilon = config.number("norm_eps", 1e-5);
    if config.flag("norm_bias", false) {
        return layers.layer_norm(name, width, epsilon).forward(x);
    }
    let scale = layers.scale(&format!("{name}.weight"), width);
    let bias = filled(net, *dtype, "0", &[(width as i64).into()]);
    LayerNorm { affine: Affine { scale, bias, epsilon: epsilon as f32 } }.forward(x)
}
