//! The configuration in the metadata of a file.

use autobwd::Result;
use serde_json::{Map, Value, json};

use super::{Gguf, keys::Keys, rope};

/// An architecture: its name here, which starts its keys, and its `model_type` in transformers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Architecture {
    pub(super) name: &'static str,
    model_type: &'static str,
}

const ARCHITECTURES: [Architecture; 4] = [
    Architecture { name: "llama", model_type: "llama" },
    Architecture { name: "qwen2", model_type: "qwen2" },
    Architecture { name: "qwen3", model_type: "qwen3" },
    Architecture { name: "gemma3", model_type: "gemma3_text" },
];

/// Keys with the same value in both configurations.
const SAME: [(&str, &str); 8] = [
    ("block_count", "num_hidden_layers"),
    ("embedding_length", "hidden_size"),
    ("feed_forward_length", "intermediate_size"),
    ("attention.head_count", "num_attention_heads"),
    ("attention.layer_norm_rms_epsilon", "rms_norm_eps"),
    ("context_length", "max_position_embeddings"),
    ("attention.key_length", "head_dim"),
    ("final_logit_softcapping", "final_logit_softcapping"),
];

/// The first of these keys, which a file must have.
const REQUIRED: usize = 5;

/// Keys without an effect: the size of the vocabulary is that of the table of embeddings.
const INERT: [&str; 3] = ["vocab_size", "tensor_data_layout", "rope.scaling.finetuned"];

/// The number of layers of the Gemma 3 with the only scale of attention that is not that of its heads' size.
const GEMMA_27B_LAYERS: u64 = 62;

impl Architecture {
    pub(super) fn named(name: &str) -> Option<Architecture> {
        ARCHITECTURES.into_iter().find(|known| known.name == name)
    }

    pub(super) fn names() -> String {
        ARCHITECTURES.map(|known| format!("`{}`", known.name)).join(", ")
    }

    pub(super) fn is_gemma(self) -> bool {
        self.name == "gemma3"
    }

    /// A key of the metadata.
    pub(super) fn key(self, name: &str) -> String {
        format!("{}.{name}", self.name)
    }
}

/// `config.json`, of the metadata and of the tensors that are there.
///
/// # Errors
/// One list of all keys that are missing or not supported.
pub(super) fn config(gguf: &Gguf) -> Result<Map<String, Value>> {
    let keys = Keys::of(gguf);
    let mut config = Map::new();
    config.insert("model_type".into(), gguf.architecture.model_type.into());
    for (place, (name, published)) in SAME.into_iter().enumerate() {
        match keys.value(name) {
            Some(value) => drop(config.insert(published.into(), value.clone())),
            None if place < REQUIRED => keys.refuse(format!("`{}` is missing", gguf.architecture.key(name))),
            None => {}
        }
    }
    for name in INERT {
        let _ = keys.value(name);
    }
    require_plain_layers(&keys);
    attention(gguf, &keys, &mut config);
    rope::rope(gguf, &keys, &mut config)?;
    windows(gguf, &keys, &mut config);
    if let Some(table) = gguf.find("token_embd.weight") {
        config.insert("vocab_size".into(), table.dims[0].into());
    }
    config.insert("tie_word_embeddings".into(), gguf.find("output.weight").is_none().into());
    for name in ["bos", "eos"] {
        if let Some(id) = gguf.value(&format!("tokenizer.ggml.{name}_token_id")) {
            config.insert(format!("{name}_token_id"), id.clone());
        }
    }
    keys.finish()?;
    Ok(config)
}

/// Layers without experts, in one file, of a model that is not a part of another.
fn require_plain_layers(keys: &Keys<'_>) {
    for name in ["expert_count", "expert_used_count"] {
        keys.require(name, &json!(0));
    }
    let general = |key: &str, supported: Value| {
        if let Some(value) = keys.gguf.value(key).filter(|value| **value != supported) {
            keys.refuse(format!("`{key}` is {value}; only {supported} is supported"));
        }
    };
    general("general.type", json!("model"));
    // Parts are merged by llama.cpp's `llama-gguf-split`.
    if keys.gguf.value("split.count") != Some(&json!(0)) {
        general("split.count", json!(1));
    }
}

/// Heads, biases and the scale of attention.
fn attention(gguf: &Gguf, keys: &Keys<'_>, config: &mut Map<String, Value>) {
    let count = |key: &str| config.get(key).and_then(Value::as_u64);
    let shared = count("hidden_size").zip(count("num_attention_heads"));
    let shared = shared.and_then(|(width, heads)| width.checked_div(heads));
    let size = count("head_dim").or(shared).unwrap_or(0);
    let layers = count("num_hidden_layers");
    for name in ["attention.value_length", "rope.dimension_count"] {
        keys.require(name, &size.into());
    }
    keys.require("attention.causal", &json!(true));
    let key_heads = keys.value("attention.head_count_kv").or(config.get("num_attention_heads")).cloned();
    config.extend([
        ("head_dim".into(), size.into()),
        ("num_key_value_heads".into(), key_heads.unwrap_or_default()),
        ("attention_bias".into(), gguf.find("blk.0.attn_output.bias").is_some().into()),
    ]);
    if gguf.architecture.is_gemma() {
        let scale = if layers == Some(GEMMA_27B_LAYERS) { shared } else { None };
        config.insert("query_pre_attn_scalar".into(), scale.unwrap_or(size).into());
    }
}

/// Windows of attention.
fn windows(gguf: &Gguf, keys: &Keys<'_>, config: &mut Map<String, Value>) {
    let window = keys.value("attention.sliding_window").filter(|window| window.as_u64() != Some(0));
    match (gguf.architecture.name, window) {
        ("gemma3", None) => keys.refuse("`gemma3.attention.sliding_window` is missing".into()),
        ("gemma3", Some(window)) => {
            config.insert("sliding_window".into(), window.clone());
            if let Some(pattern) = keys.value("attention.sliding_window_pattern") {
                config.insert("sliding_window_pattern".into(), pattern.clone());
            }
        }
        // Llama with a window is Mistral.
        ("llama", Some(window)) => {
            config.insert("model_type".into(), "mistral".into());
            config.insert("sliding_window".into(), window.clone());
        }
        // Files of Qwen have the window of a model that does not use it.
        (_, Some(window)) => {
            let context = config.get("max_position_embeddings").and_then(Value::as_u64).unwrap_or(u64::MAX);
            if window.as_u64().is_none_or(|window| window < context) {
                keys.refuse(format!("a window of {window} tokens, fewer than the {context} of a text"));
            }
        }
        (_, None) => {}
    }
}
