//! Models in the format ONNX, for autobwd.
#![doc = ""]
#![doc = include_str!("../README.md")]

mod elements;
mod export;
mod external;
mod file_buf;
mod files;
mod import;
mod minifloat;
mod options;
mod proto;
mod tensors;

pub use elements::ElementType;
pub use export::{NodeAttr, Onnx, OnnxRule, linked_rules};
pub use files::{Signature, from_bytes, load, load_with, save, signature, to_bytes};
pub use options::LoadOptions;
pub use tensors::{OnnxTensor, read_tensor};

/// For generated code.
#[doc(hidden)]
pub mod __private {
    pub use autobwd_core::__private::inventory;
}
