//! Models in the format ONNX, for autobwd.
#![doc = ""]
#![doc = include_str!("../README.md")]

mod elements;
mod export;
mod external;
mod files;
mod import;
mod options;
mod proto;
mod tensors;

pub use elements::ElementType;
pub use export::{NodeAttr, Onnx};
pub use files::{Signature, from_bytes, load, load_with, save, signature, to_bytes};
pub use options::LoadOptions;
pub use tensors::{OnnxTensor, read_tensor};
