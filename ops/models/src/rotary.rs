//! Rotary embeddings as configurations write them.

use autobwd_ops::attention::{Rotary, RotaryScaling};
use serde_json::{Map, Value};

use crate::config::Config;

/// The names under which a family writes the base of its rotary embeddings, if it does not write `rope_parameters`.
pub(crate) struct RotaryKeys {
    /// The key of the base.
    pub(crate) base: &'static str,
    /// Its default.
    pub(crate) default: f64,
    /// Whether `rope_scaling` applies.
    pub(crate) is_scaled: bool,
}

/// The rotary embeddings of layers of a kind: `rope_parameters` in the new form, otherwise the base under its own key
/// and `rope_scaling`.
pub(crate) fn rotary(config: &Config, kind: &str, keys: &RotaryKeys) -> Rotary {
    let number_of = |part: Option<&Map<String, Value>>, key: &str| part?.get(key)?.as_f64();
    let (parameters, base) = match config.part("rope_parameters") {
        Some(all) => {
            let own = all.get(kind).and_then(Value::as_object).unwrap_or(all);
            (Some(own), number_of(Some(own), "rope_theta"))
        }
        None => (config.part("rope_scaling").filter(|_| keys.is_scaled), None),
    };
    let base = base.unwrap_or_else(|| config.number(keys.base, keys.default));
    let number = |key: &str| number_of(parameters, key);
    let required = |key: &str| {
        number(key).unwrap_or_else(|| {
            config.refuse(format!("rotary embeddings without `{key}`"));
            1.0
        })
    };
    if let Some(share) = number("partial_rotary_factor").filter(|share| *share != 1.0) {
        config.refuse(format!("`partial_rotary_factor` is {share}; only 1 is supported"));
    }
    let of_training = number("original_max_position_embeddings").map(|n| n as usize);
    let of_training = of_training.unwrap_or_else(|| config.size("max_position_embeddings", 2048));
    let text = |key: &str| parameters.and_then(|part| part.get(key)).and_then(Value::as_str);
    let scaling = match text("rope_type").or(text("type")).unwrap_or("default") {
        "default" => RotaryScaling::Unscaled,
        "linear" => RotaryScaling::Linear { factor: required("factor") },
        "llama3" => RotaryScaling::Llama3 {
            factor: required("factor"),
            low_turns: required("low_freq_factor"),
            high_turns: required("high_freq_factor"),
            trained_length: of_training,
        },
        "yarn" => {
            let factor = required("factor");
            let of = |scale: f64| if factor <= 1.0 { 1.0 } else { 0.1 * scale * libm::log(factor) + 1.0 };
            let ratio =
                number("mscale").zip(number("mscale_all_dim")).filter(|(a, b)| *a != 0.0 && *b != 0.0);
            let magnitude = number("attention_factor")
                .unwrap_or_else(|| ratio.map_or_else(|| of(1.0), |(a, b)| of(a) / of(b)));
            let truncated = parameters.and_then(|part| part.get("truncate")?.as_bool()).unwrap_or(true);
            RotaryScaling::Yarn {
                factor,
                low_turns: number("beta_slow").unwrap_or(1.0),
                high_turns: number("beta_fast").unwrap_or(32.0),
                trained_length: of_training,
                truncated,
                magnitude,
            }
        }
        other => {
            config.refuse(format!("rotary embeddings of type `{other}`"));
            RotaryScaling::Unscaled
        }
    };
    Rotary { base, scaling }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{RotaryKeys, rotary};
    use crate::{config::Config, file::read_object};
    use autobwd::{Result, tensor::load_tensors};

    #[test]
    fn frequencies_of_all_forms_are_those_of_transformers() -> Result<()> {
        let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/_rope"));
        let tensors = load_tensors(folder.join("rope.safetensors"))?;
        let keys = RotaryKeys { base: "rope_theta", default: 1e4, is_scaled: true };
        let forms = read_object(&folder.join("rope.json"))?;
        for (name, form) in &forms {
            let text = form["config"].as_object().expect("an object");
            let config = Config::new(text.clone());
            let rotary = rotary(&config, "", &keys);
            // Frequencies that depend on the length of a text, and rotations of a part of a head.
            if name.starts_with("dynamic") || name.starts_with("partial") {
                assert!(config.require_no_obstacles(name).is_err(), "{name}");
                continue;
            }
            config.require_no_obstacles(name)?;
            let (found, factor) = rotary.frequencies(config.size("head_dim", 1))?;
            let expected = tensors.iter().find(|(known, _)| *known == format!("{name}.inv_freq"));
            let expected = expected.expect("frequencies").1.to_f64s();
            for (found, expected) in found.iter().zip(&expected) {
                assert!((found / expected - 1.0).abs() < 1e-5, "{name}: {found} for {expected}");
            }
            assert!((factor - form["attention_factor"].as_f64().expect("a number")).abs() < 1e-6, "{name}");
        }
        Ok(())
    }
}
