//! The vision transformer (Dosovitskiy et al., 2021): an encoder of square patches of an image.

use autobwd::Expr;
use autobwd_ops::{Math, attention::AttentionAttrs, concat, nn::Conv2d};

use crate::{
    bert::first_token,
    inputs::Inputs,
    layers::{Attention, Layers, Outputs, attend},
};

/// The number of channels, and the height and width of images.
pub(crate) fn image_dims(layers: &Layers<'_>) -> [usize; 3] {
    let side = layers.config.size("image_size", 224);
    [layers.config.size("num_channels", 3), side, side]
}

/// The transformer with the head of its architecture.
pub(crate) fn vit(layers: &Layers<'_>, inputs: &Inputs) -> Outputs {
    let Layers { net, config, dtype, .. } = layers;
    let width = config.size("hidden_size", 768);
    let epsilon = config.number("layer_norm_eps", 1e-12);
    let (side, patch) = (config.size("image_size", 224), config.size("patch_size", 16));
    let pixels = &inputs.get("pixel_values").cast(*dtype);
    let h = layers.optional_scope("vit", || {
        let mut h = net.name_scope("embeddings", || {
            let patches = Conv2d::builder(net, config.size("num_channels", 3), width, patch);
            let patches = patches.torch().dtype(*dtype).stride(patch as i32);
            let patches = patches.name("patch_embeddings.projection").build().forward(pixels);
            let patches = patches.flatten(2, 3).transpose(&[0, 2, 1]);
            let class = layers.parameter("cls_token", &[1, 1, width]);
            let class = class.expand_to(&[pixels.dim(0), 1.into(), (width as i64).into()]);
            let count = 1 + (side / patch) * (side / patch);
            concat(&[&class, &patches], 1) + layers.parameter("position_embeddings", &[1, count, width])
        });
        for i in 0..layers.count("num_hidden_layers", 12) {
            h = net.name_scope(&format!("encoder.layer.{i}"), || block(layers, width, epsilon, &h));
        }
        layers.layer_norm("layernorm", width, epsilon).forward(&h)
    });
    match config.architecture("ViTModel") {
        "ViTForImageClassification" => {
            let classifier = layers.linear("classifier", [width, config.classes()], true);
            vec![("logits", classifier.forward(&first_token(&h)))]
        }
        "ViTModel" => vec![("last_hidden_state", h)],
        other => {
            config.refuse(format!("the architecture `{other}`"));
            vec![]
        }
    }
}

fn block(layers: &Layers<'_>, width: usize, epsilon: f64, h: &Expr) -> Expr {
    let config = layers.config;
    let (heads, inner) = (config.size("num_attention_heads", 12), config.size("intermediate_size", 3072));
    let biased = config.flag("qkv_bias", true);
    let x = layers.layer_norm("layernorm_before", width, epsilon).forward(h);
    let layer = Attention {
        names: [
            "attention.attention.query",
            "attention.attention.key",
            "attention.attention.value",
            "attention.output.dense",
        ],
        biased: [biased, biased, biased, true],
        width,
        heads,
        depth: config.share(width, heads),
    };
    let h = h + layer.forward(layers, [&x, &x], |qkv| attend(qkv, None, AttentionAttrs::default()));
    let x = layers.layer_norm("layernorm_after", width, epsilon).forward(&h);
    let x = layers.linear("intermediate.dense", [width, inner], true).forward(&x);
    let x = layers.activation("hidden_act", "gelu").of(&x);
    &h + layers.linear("output.dense", [inner, width], true).forward(&x)
}
