//! Describing a model so that it reads like mathematics: expressions that append operators to a program.
//!
//! Must not know how programs run or are differentiated. Of operators it knows those that `+ - * /` stand for, by name;
//! all others come through [`emit`].

mod arith;
mod builder;

pub use builder::{Arg, Arg::New, Builder, Expr, emit};
