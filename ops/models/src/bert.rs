//! BERT (Devlin et al., 2019), RoBERTa (Liu et al., 2019) and DistilBERT (Sanh et al., 2019): encoders with learned
//! positions and normalisation after sums.

use autobwd::{DType, Expr};
use autobwd_ops::{Math, attention::AttentionAttrs, filled, positions};
use serde_json::json;

use crate::{
    inputs::Inputs,
    layers::{Activation, Attention, Layers, Outputs, attend, tied},
};

/// Sizes of an encoder, and the names of the parts of a block.
struct Encoder {
    width: usize,
    inner: usize,
    heads: usize,
    epsilon: f64,
    activation: Activation,
    names: BlockNames,
}

/// The names of a block's layers, in the order of their use.
struct BlockNames {
    attention: [&'static str; 4],
    attention_norm: &'static str,
    inner: [&'static str; 2],
    norm: &'static str,
}

const BERT: BlockNames = BlockNames {
    attention: [
        "attention.self.query",
        "attention.self.key",
        "attention.self.value",
        "attention.output.dense",
    ],
    attention_norm: "attention.output.LayerNorm",
    inner: ["intermediate.dense", "output.dense"],
    norm: "output.LayerNorm",
};

const DISTILBERT: BlockNames = BlockNames {
    attention: ["attention.q_lin", "attention.k_lin", "attention.v_lin", "attention.out_lin"],
    attention_norm: "sa_layer_norm",
    inner: ["ffn.lin1", "ffn.lin2"],
    norm: "output_layer_norm",
};

/// BERT or RoBERTa with the head of its architecture.
pub(crate) fn bert(layers: &Layers<'_>, inputs: &Inputs, family: &'static str) -> Outputs {
    let Layers { net, config, .. } = layers;
    config.require("position_embedding_type", &json!("absolute"));
    config.require("is_decoder", &json!(false));
    config.require("add_cross_attention", &json!(false));
    let encoder = Encoder {
        width: config.size("hidden_size", 768),
        inner: config.size("intermediate_size", 3072),
        heads: config.size("num_attention_heads", 12),
        epsilon: config.number("layer_norm_eps", 1e-12),
        activation: layers.activation("hidden_act", "gelu"),
        names: BERT,
    };
    let width = encoder.width;
    let (vocabulary, blocks) = (config.size("vocab_size", 30_522), layers.count("num_hidden_layers", 12));
    let ids = inputs.ids();
    let (h, words) = layers.optional_scope(family, || {
        let (words, h) = net.name_scope("embeddings", || {
            let words = layers.embedding("word_embeddings", vocabulary, width);
            let at =
                if family == "roberta" { after_padding(layers, ids) } else { positions(net, &ids.dim(1)) };
            let places =
                layers.embedding("position_embeddings", config.size("max_position_embeddings", 512), width);
            let kinds = layers.embedding("token_type_embeddings", config.size("type_vocab_size", 2), width);
            let kind = match inputs.find("token_type_ids") {
                Some(types) => kinds.forward(types),
                None => kinds.weight.slice(0, 0, 1),
            };
            let sum = words.forward(ids) + places.forward(&at) + kind;
            (words, layers.layer_norm("LayerNorm", width, encoder.epsilon).forward(&sum))
        });
        let h = encoder.blocks(layers, inputs, "encoder.layer", blocks, h);
        (h, words)
    });
    let pool = || {
        let dense = || layers.linear("pooler.dense", [width, width], true).forward(&first_token(&h));
        layers.optional_scope(family, dense).tanh()
    };
    let classifier = |x: &Expr| layers.linear("classifier", [width, config.classes()], true).forward(x);
    // DistilBERT and RoBERTa name their heads otherwise.
    let of_words = |scope: &str, dense: &str, norm: &str, activation: Activation| {
        net.name_scope(scope, || {
            let x = activation.of(&layers.linear(dense, [width, width], true).forward(&h));
            let x = layers.layer_norm(norm, width, encoder.epsilon).forward(&x);
            tied(&x, &words.weight) + layers.parameter("bias", &[vocabulary])
        })
    };
    let bert_words =
        || of_words("cls.predictions", "transform.dense", "transform.LayerNorm", encoder.activation);
    let architecture = config.architecture(if family == "bert" { "BertModel" } else { "RobertaModel" });
    match architecture {
        "BertForPreTraining" => vec![
            ("logits", bert_words()),
            (
                "seq_relationship_logits",
                layers.linear("cls.seq_relationship", [width, 2], true).forward(&pool()),
            ),
        ],
        "BertForMaskedLM" => vec![("logits", bert_words())],
        "RobertaForMaskedLM" => {
            vec![("logits", of_words("lm_head", "dense", "layer_norm", Activation::Gelu))]
        }
        "BertForSequenceClassification" => vec![("logits", classifier(&pool()))],
        "RobertaForSequenceClassification" => {
            let x = layers.linear("classifier.dense", [width, width], true).forward(&first_token(&h)).tanh();
            vec![(
                "logits",
                layers.linear("classifier.out_proj", [width, config.classes()], true).forward(&x),
            )]
        }
        "BertForTokenClassification" | "RobertaForTokenClassification" => vec![("logits", classifier(&h))],
        "BertModel" | "RobertaModel" => {
            let has_pooler = layers.names.iter().any(|name| name.ends_with("pooler.dense.weight"));
            let pooled = has_pooler.then(|| ("pooler_output", pool()));
            [("last_hidden_state", h.clone())].into_iter().chain(pooled).collect()
        }
        other => {
            config.refuse(format!("the architecture `{other}`"));
            vec![]
        }
    }
}

/// DistilBERT with the head of its architecture.
pub(crate) fn distilbert(layers: &Layers<'_>, inputs: &Inputs) -> Outputs {
    let Layers { net, config, .. } = layers;
    let encoder = Encoder {
        width: config.size("dim", 768),
        inner: config.size("hidden_dim", 3072),
        heads: config.size("n_heads", 12),
        epsilon: 1e-12,
        activation: layers.activation("activation", "gelu"),
        names: DISTILBERT,
    };
    let width = encoder.width;
    let vocabulary = config.size("vocab_size", 30_522);
    let ids = inputs.ids();
    let (words, h) = layers.optional_scope("distilbert", || {
        let (words, h) = net.name_scope("embeddings", || {
            let words = layers.embedding("word_embeddings", vocabulary, width);
            let places =
                layers.embedding("position_embeddings", config.size("max_position_embeddings", 512), width);
            let sum = words.forward(ids) + places.forward(&positions(net, &ids.dim(1)));
            (words, layers.layer_norm("LayerNorm", width, encoder.epsilon).forward(&sum))
        });
        (words, encoder.blocks(layers, inputs, "transformer.layer", layers.count("n_layers", 6), h))
    });
    let classifier = |x: &Expr| layers.linear("classifier", [width, config.classes()], true).forward(x);
    match config.architecture("DistilBertModel") {
        "DistilBertForSequenceClassification" => {
            let x = layers.linear("pre_classifier", [width, width], true).forward(&first_token(&h)).relu();
            vec![("logits", classifier(&x))]
        }
        "DistilBertForTokenClassification" => vec![("logits", classifier(&h))],
        "DistilBertForMaskedLM" => {
            let x = layers.linear("vocab_transform", [width, width], true).forward(&h);
            let x = layers.layer_norm("vocab_layer_norm", width, 1e-12).forward(&encoder.activation.of(&x));
            let bias = layers.parameter("vocab_projector.bias", &[vocabulary]);
            vec![("logits", tied(&x, &words.weight) + bias)]
        }
        "DistilBertModel" => vec![("last_hidden_state", h)],
        other => {
            config.refuse(format!("the architecture `{other}`"));
            vec![]
        }
    }
}

impl Encoder {
    fn blocks(&self, layers: &Layers<'_>, inputs: &Inputs, scope: &str, count: usize, mut h: Expr) -> Expr {
        for i in 0..count {
            h = layers.net.name_scope(&format!("{scope}.{i}"), || self.block(layers, inputs, &h));
        }
        h
    }

    fn block(&self, layers: &Layers<'_>, inputs: &Inputs, h: &Expr) -> Expr {
        let Encoder { width, inner, heads, epsilon, .. } = *self;
        let BlockNames { attention, attention_norm, inner: [first, second], norm } = self.names;
        let depth = layers.config.share(width, heads);
        let layer = Attention { names: attention, biased: [true; 4], width, heads, depth };
        let attrs = AttentionAttrs::default();
        let sum = h + layer.forward(layers, [h, h], |qkv| attend(qkv, inputs.mask(), attrs));
        let h = layers.layer_norm(attention_norm, width, epsilon).forward(&sum);
        let x = self.activation.of(&layers.linear(first, [width, inner], true).forward(&h));
        let sum = &h + layers.linear(second, [inner, width], true).forward(&x);
        layers.layer_norm(norm, width, epsilon).forward(&sum)
    }
}

/// `[batch, length, width]` at the first token: `[batch, width]`.
pub(crate) fn first_token(h: &Expr) -> Expr {
    h.slice(1, 0, 1).squeeze(&[1])
}

/// The positions of RoBERTa: padding has the number of its token, and words count on from there.
fn after_padding(layers: &Layers<'_>, ids: &Expr) -> Expr {
    let number = layers.config.value("pad_token_id").and_then(serde_json::Value::as_u64).unwrap_or(1);
    let padding = filled(layers.net, DType::I64, &number.to_string(), &[1.into()]);
    let is_word = ids.not_equal(&padding).cast(DType::I64);
    is_word.cumsum(1) * is_word + padding
}
