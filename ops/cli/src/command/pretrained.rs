//! Published models as arguments.

use std::path::PathBuf;

use autobwd::DType;
use autobwd_models::{Adapter, Pretrained, quantize_linear};
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
    pub(super) quantize: Option<Quantization>,
}

impl PretrainedArgs {
    pub(super) fn open(&self) -> Pretrained {
        Pretrained::open(&self.model).dtype(self.dtype)
    }

    /// Quantises the weights, and adds an adapter: to the weights, or as branches if they are quantised.
    pub(super) fn adapt(&self, model: &mut Model, adapter: Option<&PathBuf>) -> CommandResult {
        if let Some(quantization) = self.quantize {
            quantize_linear(model, quantization)?;
        }
        if let Some(folder) = adapter {
            let adapter = Adapter::read(folder).map_err(|e| CommandFailure::Unreadable(e.to_string()))?;
            match self.quantize {
                None => adapter.merge(model)?,
                Some(_) => _ = adapter.attach(model)?,
            }
        }
        Ok(())
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
