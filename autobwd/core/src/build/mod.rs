//! Describing a model so that it reads like mathematics: expressions that append operators to a program, or compute them
//! at once.
//!
//! Must not know how programs run, nor how derivatives are put together. Of operators it knows those that `+ - * /` stand for, by name;
//! all others come through [`emit`].

mod arith;
mod builder;
pub(crate) mod eager;
mod expr;
mod snapshot;
mod transaction;

pub use builder::{Builder, emit};
pub(crate) use builder::{MakeDesc, OpArgs};
pub use eager::Value;
pub use expr::{Arg, Arg::New, Expr};
pub use snapshot::ProgramSnapshot;
pub use transaction::Transaction;
