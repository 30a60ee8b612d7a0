//! The operator library of autobwd: operators, layers, initialisers and optimizers.
//!
//! There is one file for each family, with each gradient directly below its operator. All code uses the public
//! interface of the framework, so any crate can do the same.
//!
//! Control flow is in [`control::while_loop`], [`control::cond`], [`control::static_rnn`] and [`control::scan`].
//!
//! A crate that only loads programs must name this crate, or the linker drops it: `use autobwd_ops as _;`.
//!
//! # Operators
//!
//! Slots marked `?` are optional; slots marked `*` hold any number of variables.
//!
#![doc = include_str!("../OPERATORS.md")]

pub mod activation;
pub mod array;
pub mod attention;
pub mod binary;
mod common;
pub mod compare;
pub mod control;
pub mod conv;
pub mod division;
pub mod dropout;
pub mod elementwise;
pub mod extremum;
pub mod fill;
pub mod image;
pub mod increment;
mod infallible;
mod init;
pub mod logic;
pub mod lookup;
pub mod loss;
pub mod lstm;
mod math;
pub mod matmul;
pub mod nn;
pub mod norm;
pub mod optim;
pub mod pick;
pub mod places;
pub mod pool;
pub mod prelu;
pub mod random;
pub mod rectifier;
pub mod reduce;
pub mod rounding;
pub mod scan;
pub mod search;
pub mod select;
pub mod shape;
pub mod smooth;
pub mod softmax;
pub mod sort;
pub mod special;
pub mod sum;
pub mod trigonometry;
pub mod update;
mod vectors;

pub use init::Init;
pub use math::{Math, concat};
