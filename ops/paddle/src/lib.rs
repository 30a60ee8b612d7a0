//! Program and parameter files of PaddlePaddle 2.0 to 2.6, for autobwd.
#![doc = ""]
#![doc = include_str!("../README.md")]

mod attrs;
mod export;
mod files;
mod import;
mod info;
mod model;
mod parameters;
mod proto;
mod reference;
mod tensors;

pub use files::load_program;
pub use model::{from_bytes, load, save, to_bytes};
