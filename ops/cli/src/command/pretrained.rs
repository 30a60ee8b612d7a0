//! Published models as arguments.

use std::path::PathBuf;

use autobwd::DType;
use autobwd_models::{Adapter, Pretrained};
use autobwd_ops::{Model, quantization::Quantization};
use clap::Args;

use crate::terminal::{CommandFailure, CommandResult};

/// A published model, and what its weights become.
#[derive(Debug, Args)]
pub(super) struct PretrainedArgs {
    /// The published model: a folder in the layout of Hugging Face, or a .gguf file
    pub(super) model: PathBuf,
    /// The dtype of weights and results: `float32`, `bfloat16` or `float16`
    #[arg(long, value_name = "DTYPE", default_value = "float32", value_parser = dtype)]
    pub(super) dtype: DType,
    /// Quantise the weights of all products but the head: `nf4`, `int8` or `int4`, with a group size, such as `int8:64`
    #[arg(long, value_name = "KIND")]
    quantize: Option<Quantization>,
    /// Quantise the weights of the product that computes logits, likewise; a table of tokens that is also this matrix
    /// stays next to the codes
    #[arg(long, value_name = "KIND")]
    quantize_head: Option<Quantization>,
}

impl PretrainedArgs {
    pub(super) fn open(&self) -> Pretrained {
        let pretrained = Pretrained::open(&self.model).dtype(self.dtype);
        let pretrained = self.quantize.into_iter().fold(pretrained, Pretrained::quantize);
        self.quantize_head.into_iter().fold(pretrained, Pretrained::quantize_head)
    }

    /// The model with the head of an adapter, if that was trained with a new one.
    pub(super) fn open_for(&self, adapter: Option<&PathBuf>) -> CommandResult<Pretrained> {
        let opened = adapter.into_iter().try_fold(self.open(), Pretrained::head_of_adapter);
        opened.map_err(|e| CommandFailure::Unreadable(e.to_string()))
    }

    /// Adds an adapter: to the weights, or as branches if weights are quantised.
    pub(super) fn adapt(&self, model: &mut Model, adapter: Option<&PathBuf>) -> CommandResult {
        let Some(folder) = adapter else { return Ok(()) };
        let adapter = Adapter::read(folder).map_err(|e| CommandFailure::Unreadable(e.to_string()))?;
        match self.quantize.is_none() && self.quantize_head.is_none() {
            true => adapter.merge(model)?,
            false => _ = adapter.attach(model)?,
        }
        Ok(())
    }
}

/// The kinds of what models read, by the input.
const KINDS: [(&str, &str); 3] =
    [("input_ids", "texts"), ("pixel_values", "images (--image)"), ("input_features", "sounds (--audio)")];

/// Requires that a model reads what the arguments give, an input by its name.
pub(super) fn require_main_input(pretrained: &Pretrained, given: &str) -> CommandResult {
    let read = pretrained.main_input().map_err(|e| CommandFailure::Unreadable(e.to_string()))?;
    let kind = |input: &str| KINDS.iter().find(|(known, _)| *known == input).map_or("", |(_, kind)| kind);
    match read == given {
        true => Ok(()),
        false => {
            let text = format!("the model reads {}, not {}", kind(read), kind(given));
            Err(CommandFailure::Unreadable(text))
        }
    }
}

fn dtype(text: &str) -> Result<DType, String> {
    let short = match text {
        "f32" => "float32",
        "bf16" => "bfloat16",
        "f16" => "float16",
        other => other,
    };
    let known = DType::from_name(short).filter(|dtype| *dtype == DType::F32 || dtype.is_half());
    known.ok_or_else(|| "known are float32, bfloat16 and float16".into())
}
