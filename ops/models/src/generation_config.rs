//! The options of a generation in the files of a model: `generation_config.json`, or old keys of `config.json`.

use autobwd::Result;
use serde_json::{Value, json};

use crate::{GenerationOptions, config::Config, file::refused, source::Source};

/// The files with options: the first one that there is counts.
const FILES: [&str; 2] = ["generation_config.json", "config.json"];

/// Keys that change the generated tokens, with the only value that is supported.
fn required() -> [(&'static str, Value); 15] {
    [
        ("constraints", Value::Null),
        ("dola_layers", Value::Null),
        ("force_words_ids", Value::Null),
        ("forced_decoder_ids", Value::Null),
        ("guidance_scale", json!(1.0)),
        ("max_time", Value::Null),
        ("num_beam_groups", json!(1)),
        ("num_beams", json!(1)),
        ("num_return_sequences", json!(1)),
        ("penalty_alpha", json!(0.0)),
        ("return_timestamps", json!(false)),
        // Texts, which a generator of tokens does not know.
        ("stop_strings", Value::Null),
        ("token_healing", json!(false)),
        ("use_mtp", json!(false)),
        ("watermarking_config", Value::Null),
    ]
}

/// The keys of a generation.
pub(crate) struct GenerationConfig {
    config: Config,
    failed: String,
}

/// The token with which a decoder starts that follows an encoder.
///
/// # Errors
/// Files that cannot be read, or do not name it.
pub(crate) fn decoder_start(source: &Source) -> Result<i64> {
    for file in FILES {
        let token = source.object(file)?.and_then(|keys| keys.get("decoder_start_token_id")?.as_i64());
        if let Some(token) = token {
            return Ok(token);
        }
    }
    Err(refused(&source.path_of(FILES[1]), "no token `decoder_start_token_id`"))
}

impl GenerationConfig {
    /// # Errors
    /// Files that cannot be read.
    pub(crate) fn read(source: &Source) -> Result<GenerationConfig> {
        for file in FILES {
            if let Some(keys) = source.object(file)? {
                let failed = format!("cannot generate as `{}` says", source.path_of(file).display());
                return Ok(GenerationConfig { config: Config::new(keys), failed });
            }
        }
        Err(refused(&source.path_of(FILES[1]), "no such file"))
    }

    /// # Errors
    /// One list of all keys that are no options of their kind, or whose values are not supported.
    pub(crate) fn options(&self) -> Result<GenerationOptions> {
        let GenerationConfig { config, failed } = self;
        for (key, supported) in required() {
            // 1 and 1.0 are one number.
            let is_equal = |value: &Value| match (value.as_f64(), supported.as_f64()) {
                (Some(a), Some(b)) => a == b,
                _ => *value == supported,
            };
            if !config.value(key).is_none_or(is_equal) {
                config.require(key, &supported);
            }
        }
        let plain = GenerationOptions::default();
        let number = |key: &str, default: f32| config.number(key, default.into()) as f32;
        let count = |key: &str, default: usize| {
            let count = |value: &Value| value.as_u64().and_then(|n| usize::try_from(n).ok());
            config.read(key, "a number from 0", count).unwrap_or(default)
        };
        let ids =
            |key: &str| config.read(key, "a token or a list of tokens", one_or_more).unwrap_or_default();
        let flag = |key: &str| config.flag(key, false);
        let options = GenerationOptions {
            max_new_tokens: count("max_new_tokens", plain.max_new_tokens),
            eos_token_ids: ids("eos_token_id"),
            sequence_bias: config
                .read("sequence_bias", "a list of tokens with biases", biases)
                .unwrap_or_default(),
            encoder_repetition_penalty: number("encoder_repetition_penalty", 1.0),
            repetition_penalty: number("repetition_penalty", 1.0),
            no_repeat_ngram_size: count("no_repeat_ngram_size", 0),
            encoder_no_repeat_ngram_size: count("encoder_no_repeat_ngram_size", 0),
            bad_words_ids: config
                .read("bad_words_ids", "a list of lists of tokens", sequences)
                .unwrap_or_default(),
            min_length: count("min_length", 0),
            min_new_tokens: count("min_new_tokens", 0),
            forced_bos_token_id: config.read("forced_bos_token_id", "a token", Value::as_i64),
            forced_eos_token_ids: ids("forced_eos_token_id"),
            remove_invalid_values: flag("remove_invalid_values"),
            exponential_decay_length_penalty: config.read(
                "exponential_decay_length_penalty",
                "a number of tokens and a factor",
                decay,
            ),
            suppress_tokens: ids("suppress_tokens"),
            begin_suppress_tokens: ids("begin_suppress_tokens"),
            do_sample: flag("do_sample"),
            temperature: number("temperature", 1.0),
            top_h: config.value("top_h").map(|_| number("top_h", 1.0)),
            top_k: count("top_k", plain.top_k),
            top_p: number("top_p", 1.0),
            min_p: number("min_p", 0.0),
            typical_p: number("typical_p", 1.0),
            epsilon_cutoff: number("epsilon_cutoff", 0.0),
            eta_cutoff: number("eta_cutoff", 0.0),
            renormalize_logits: flag("renormalize_logits"),
            seed: 0,
        };
        config.require_no_obstacles(failed)?;
        Ok(options)
    }
}

fn one_or_more(value: &Value) -> Option<Vec<i64>> {
    match value {
        Value::Array(list) => list.iter().map(Value::as_i64).collect(),
        value => Some(vec![value.as_i64()?]),
    }
}

fn sequences(value: &Value) -> Option<Vec<Vec<i64>>> {
    value.as_array()?.iter().map(|sequence| one_or_more(sequence).filter(|_| sequence.is_array())).collect()
}

fn biases(value: &Value) -> Option<Vec<(Vec<i64>, f32)>> {
    let bias = |pair: &Value| Some((one_or_more(pair.get(0)?)?, pair.get(1)?.as_f64()? as f32));
    value.as_array()?.iter().map(bias).collect()
}

fn decay(value: &Value) -> Option<(usize, f32)> {
    let start = usize::try_from(value.get(0)?.as_u64()?).ok()?;
    Some((start, value.get(1)?.as_f64()? as f32))
}
