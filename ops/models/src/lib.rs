//! Published transformer models, for autobwd.
#![doc = ""]
#![doc = include_str!("../README.md")]
//!
//! # Architectures
//!
//! Each family is described in one file with the layers of `autobwd_ops::nn`, as a user would: `gpt2.rs`; `llama.rs`, with
//! Mistral, Qwen and Gemma; `bert.rs`, with RoBERTa and DistilBERT; `modernbert.rs`; `vit.rs`; `t5.rs`; `whisper.rs`.
//! `source.rs` has the files: a folder, or a file of GGUF, which `gguf` reads.

mod adapter;
mod bert;
mod config;
mod file;
mod folder;
mod generated_text;
mod generation_config;
mod generation_options;
mod generation_overrides;
mod generator;
mod gguf;
mod gpt2;
#[cfg(feature = "images")]
mod image_processor;
mod inputs;
mod layers;
mod llama;
mod load;
mod lora;
mod loss;
mod mel;
mod modernbert;
mod new_head;
mod pooling;
mod pretrained;
mod processors;
mod quantization;
mod rotary;
#[cfg(feature = "sounds")]
mod sound;
mod source;
mod t5;
mod tensors;
#[cfg(feature = "text")]
mod text;
#[cfg(feature = "tuning")]
mod tuning;
mod vit;
mod whisper;

pub use adapter::Adapter;
pub use generation_options::GenerationOptions;
pub use generation_overrides::GenerationOverrides;
pub use generator::Generator;
#[cfg(feature = "images")]
pub use image_processor::ImageProcessor;
pub use lora::{Lora, linear_targets};
pub use loss::{next_token_loss, token_loss};
pub use mel::FeatureExtractor;
pub use pooling::{contrastive_loss, mean_pooling};
pub use pretrained::Pretrained;
pub use processors::TextContext;
pub use quantization::quantize_linear;
#[cfg(feature = "text")]
pub use text::{ChatMessage, GeneratedText, TextStream, Tokenizer, transcription_prompt};
#[cfg(all(feature = "tuning", feature = "images"))]
pub use tuning::read_images;
#[cfg(feature = "tuning")]
pub use tuning::{
    Example, ExampleFormat, Features, FineTuning, StepReport, TuningRun, TuningSummary, class_names,
    class_names_of, read_examples, read_sounds,
};
