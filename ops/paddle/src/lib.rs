//! Program and parameter files of PaddlePaddle 2.0 to 2.6, for autobwd.
#![doc = ""]
#![doc = include_str!("../README.md")]

mod attrs;
mod export;
mod files;
mod import;
mod info;
mod model;
mod obstacles;
mod proto;
mod reference;
mod tensors;
mod training;

pub use files::load_program;
pub use model::Model;
