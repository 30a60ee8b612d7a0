//! Rotary embeddings in the metadata of a file.

use std::f64::consts::TAU;

use autobwd::Result;
use serde_json::{Map, Value, json};

use super::{Gguf, keys::Keys, names::ROPE_FACTORS};

/// `low_freq_factor`, `high_freq_factor` and `original_max_position_embeddings` of all published models of Llama 3.
const LLAMA3: [f64; 3] = [1.0, 4.0, 8192.0];

/// Adds bases and scaling of rotary embeddings to a configuration.
pub(super) fn rope(gguf: &Gguf, keys: &Keys<'_>, config: &mut Map<String, Value>) -> Result<()> {
    let base = keys.number("rope.freq_base").unwrap_or(1e4);
    config.insert("rope_theta".into(), base.into());
    if gguf.architecture.is_gemma() {
        let local = keys.number("rope.freq_base_swa").unwrap_or(1e4);
        config.insert("rope_local_base_freq".into(), local.into());
    }
    let mut scaling = scaling(keys);
    if let Some(info) = gguf.find(ROPE_FACTORS) {
        let factors = gguf.tensor(info)?.to_f64s();
        match (llama3(base, &factors), &scaling) {
            (Some(found), Value::Null) => scaling = found,
            (_, Value::Null) => {
                keys.refuse(format!("the factors in `{ROPE_FACTORS}` are not those of Llama 3"));
            }
            _ => keys.refuse(format!("both `{ROPE_FACTORS}` and `rope.scaling`")),
        }
    }
    config.insert("rope_scaling".into(), scaling);
    Ok(())
}

/// Linear scaling, which is the default of llama.cpp if there is a factor, or YaRN.
fn scaling(keys: &Keys<'_>) -> Value {
    let factor = keys.number("rope.scaling.factor").filter(|factor| *factor != 0.0);
    let kind = keys.value("rope.scaling.type").map_or("linear", |kind| kind.as_str().unwrap_or(""));
    let trained = keys.value("rope.scaling.original_context_length").cloned().unwrap_or_default();
    match (kind, factor) {
        ("none", _) | ("linear", None) => Value::Null,
        ("linear", Some(factor)) => json!({ "rope_type": "linear", "factor": factor }),
        ("yarn", Some(factor)) => {
            for name in ["attn_factor", "yarn_attn_factor", "yarn_ext_factor"] {
                keys.require(&format!("rope.scaling.{name}"), &json!(1.0));
            }
            json!({
                "rope_type": "yarn",
                "factor": factor,
                "original_max_position_embeddings": trained,
                "beta_fast": keys.number("rope.scaling.yarn_beta_fast"),
                "beta_slow": keys.number("rope.scaling.yarn_beta_slow"),
            })
        }
        ("yarn", None) => {
            keys.refuse("`rope.scaling.factor` is missing".into());
            Value::Null
        }
        _ => {
            keys.refuse(format!("rotary embeddings of type `{kind}`"));
            Value::Null
        }
    }
}

/// The scaling of Llama 3 with these factors, by which frequencies are divided: llama.cpp stores them instead of their
/// four numbers.
fn llama3(base: f64, factors: &[f64]) -> Option<Value> {
    let [low, high, trained] = LLAMA3;
    let factor = *factors.last()?;
    let expected = |i: usize| {
        let turns = trained * libm::pow(base, -(i as f64) / factors.len() as f64) / TAU;
        let share = ((turns - low) / (high - low)).clamp(0.0, 1.0);
        1.0 / ((1.0 - share) / factor + share)
    };
    let fits = |(i, found): (usize, &f64)| (found / expected(i) - 1.0).abs() < 1e-4;
    factors.iter().enumerate().all(fits).then(|| {
        json!({
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": low,
            "high_freq_factor": high,
            "original_max_position_embeddings": trained as u64,
        })
    })
}
