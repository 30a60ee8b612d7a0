//! The operator library of autobwd: operators, layers, initialisers and optimizers.
//!
//! One file a family, each operator directly above its gradient. Everything in here uses the framework's public
//! interface alone: what this crate does, any crate can do.

pub mod activation;
mod common;
pub mod elementwise;
pub mod fill;
mod init;
pub mod loss;
mod math;
pub mod matmul;
pub mod nn;
pub mod optim;
pub mod random;
pub mod reduce;
pub mod search;
pub mod shape;
pub mod softmax;
pub mod update;

pub use init::Init;
pub use math::{Math, concat};
