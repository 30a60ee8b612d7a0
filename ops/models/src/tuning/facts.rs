//! What a fine-tuning needs to know of a model.

use autobwd::{Error, ErrorKind, Result};
use serde_json::Value;

use crate::{Pretrained, pretrained::Family};

/// What the configuration of a model says.
pub(super) struct ModelFacts {
    family: Family,
    /// The largest number of tokens of a text.
    pub(super) positions: Option<usize>,
}

impl ModelFacts {
    /// Whether it continues texts, and has no encoder.
    pub(super) fn is_decoder(&self) -> bool {
        matches!(self.family, Family::Gpt2 | Family::Llama(_))
    }

    /// # Errors
    /// Files that cannot be read; models that are not fine-tuned on texts.
    pub(super) fn of(pretrained: &Pretrained) -> Result<ModelFacts> {
        let config = pretrained.config()?;
        let family = pretrained.family(&pretrained.source.path_of("config.json"), &config)?;
        if matches!(family, Family::Vit | Family::T5 | Family::Whisper) {
            let text = "models of type `vit`, `t5` and `whisper` are not fine-tuned by this function: append a loss to \
                        the program of `Pretrained::load`";
            return Err(Error::new(ErrorKind::Program, text));
        }
        let size = |key: &str| config.value(key).and_then(Value::as_u64).map(|n| n as usize);
        let positions = size("max_position_embeddings").or_else(|| size("n_positions"));
        // The positions of RoBERTa start after its padding.
        let skipped = match family {
            Family::Bert("roberta") => size("pad_token_id").unwrap_or(1) + 1,
            _ => 0,
        };
        Ok(ModelFacts { family, positions: positions.map(|count| count.saturating_sub(skipped)) })
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
    let config = pretrained.config()?;
    let labels = config.value("id2label").and_then(Value::as_object);
    let name = |class: usize| labels?.get(&class.to_string())?.as_str().map(String::from);
    let names: Option<Vec<String>> = (0..labels.map_or(0, |labels| labels.len())).map(name).collect();
    names.filter(|names| !names.is_empty()).ok_or_else(|| {
        Error::new(ErrorKind::Format, "the configuration has no names of classes (`id2label`)")
    })
}
