//! What a fine-tuning needs to know of a model.

use autobwd::{Error, ErrorKind, Result};
use autobwd_ops::Model;
use serde_json::Value;

use super::rows::{RowInput, RowKind, RowTarget};
use crate::{Pretrained, generation_config::decoder_start, pretrained::Family};

/// What the configuration of a model says.
pub(super) struct ModelFacts {
    family: Family,
    /// The largest number of tokens of a text that is read, and of one that a decoder generates.
    pub(super) positions: [Option<usize>; 2],
    /// The first token of a decoder that follows an encoder, and the token of padding.
    decoder: Option<[i64; 2]>,
}

impl ModelFacts {
    /// The input besides tokens, if the model reads tokens.
    pub(super) fn second_input(&self) -> Option<&'static str> {
        match self.family {
            Family::Vit | Family::Whisper => None,
            Family::Gpt2 | Family::Llama(_) => Some("position_ids"),
            _ => Some("attention_mask"),
        }
    }

    /// What rows hold for a model with logits of this rank.
    ///
    /// # Errors
    /// Features of unknown size.
    pub(super) fn row_kind(&self, model: &Model, logits_rank: usize) -> Result<RowKind> {
        let features = |name: &'static str| {
            let desc = model.program.find(name).and_then(|var| model.program.root().vars.get(&var));
            let dims = desc.and_then(|desc| desc.dims.iter().skip(1).map(|dim| dim.get()).collect());
            let unknown = || Error::new(ErrorKind::Program, format!("`{name}` has no known size"));
            Ok::<_, Error>(RowInput::Features(name, dims.ok_or_else(unknown)?))
        };
        let input = match self.family {
            Family::Vit => features("pixel_values")?,
            Family::Whisper => features("input_features")?,
            Family::Gpt2 | Family::Llama(_) => RowInput::PackedTokens,
            _ => RowInput::Tokens,
        };
        let target = match (self.decoder, &input) {
            _ if logits_rank == 2 => RowTarget::Class,
            (Some([start, padding]), _) => RowTarget::Text { start, padding },
            (None, RowInput::PackedTokens) => RowTarget::NextTokens,
            (None, _) => RowTarget::TokenLabels,
        };
        Ok(RowKind { input, target })
    }

    /// # Errors
    /// Files that cannot be read.
    pub(super) fn of(pretrained: &Pretrained) -> Result<ModelFacts> {
        let config = pretrained.config()?;
        let family = pretrained.family(&pretrained.source.path_of("config.json"), &config)?;
        let size = |key: &str| config.value(key).and_then(Value::as_u64).map(|n| n as usize);
        let positions = size("max_position_embeddings").or_else(|| size("n_positions"));
        // The positions of RoBERTa start after its padding.
        let skipped = match family {
            Family::Bert("roberta") => size("pad_token_id").unwrap_or(1) + 1,
            _ => 0,
        };
        let is_after_encoder = matches!(family, Family::T5 | Family::Whisper);
        let decoder = match is_after_encoder {
            false => None,
            true => {
                let padding = config.value("pad_token_id").and_then(Value::as_i64);
                Some([decoder_start(&pretrained.source)?, padding.unwrap_or(0)])
            }
        };
        // T5 has relative positions: its configurations name a length that is no bound.
        let positions =
            if is_after_encoder { None } else { positions.map(|count| count.saturating_sub(skipped)) };
        let positions = [positions, size("max_target_positions").filter(|_| family == Family::Whisper)];
        Ok(ModelFacts { family, positions, decoder })
    }

    /// The targets of adapters in peft, if none are given.
    ///
    /// # Errors
    /// Families without default.
    pub(super) fn default_targets(&self) -> Result<Vec<String>> {
        let targets: &[&str] = match self.family {
            Family::Gpt2 => &["c_attn"],
            Family::Llama(_) => &["q_proj", "v_proj"],
            Family::Bert(_) => &["query", "value"],
            Family::T5 => &["q", "v"],
            _ => {
                let text = "the adapters of this model need targets: it has no default ones";
                return Err(Error::new(ErrorKind::Attr, text));
            }
        };
        Ok(targets.iter().map(ToString::to_string).collect())
    }
}

/// The names of the classes of a model that classifies, in their order: `id2label` of its configuration.
///
/// # Errors
/// Files that cannot be read; a configuration without names.
pub fn class_names(pretrained: &Pretrained) -> Result<Vec<String>> {
    pretrained.config()?.class_names().ok_or_else(|| {
        Error::new(ErrorKind::Format, "the configuration has no names of classes (`id2label`)")
    })
}
