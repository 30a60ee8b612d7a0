//! The operator library of autobwd: operators, layers, initialisers and optimizers.
//!
//! One file a family, each operator directly above its gradient. Everything in here uses the framework's public
//! interface alone: what this crate does, any crate can do.
//!
//! Loops, branches and recurrences are said by [`control::while_loop`], [`control::cond`], [`control::static_rnn`] and
//! [`control::scan`].
//!
//! Whoever only loads programs names this crate, or the linker leaves it out: `use autobwd_ops as _;`.
//!
//! # Operators
//!
//! Slots marked `?` may be absent, those marked `*` hold any number of variables.
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

// Keeps count, so that it is noticed when some are not linked.

pub use init::Init;
pub use math::{Math, concat};
