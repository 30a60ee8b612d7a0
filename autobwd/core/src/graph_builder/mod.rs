//! Expressions and builders: code that reads like mathematics appends operators to a program, or computes them eagerly.
//!
//! Must not know how programs run or how gradients are derived. It knows no operator: all come through [`emit`].
//!
//! The program of a builder is never borrowed during a call of foreign code (closures, initialisers, shape rules).
//! `Builder::program` returns a snapshot: the program is shared, and copied on write while a snapshot exists.
//! `Builder::edit` works on a copy, which replaces the program as a whole. A `Transaction` is rolled back unless it is
//! committed, also when a panic unwinds.
//!
//! A failed operator has failed outputs, overwritten variables among them. In eager mode, only these outputs carry the
//! error, so the result of `emit` must be used.

pub(crate) mod append;
mod builder;
mod eager;
pub(crate) mod engine;
mod expr;
pub(crate) mod function;
mod guards;
mod snapshot;
mod transaction;
pub(crate) mod value;

pub use append::emit;
pub(crate) use append::{DescribeFn, OpArgs};
pub use builder::Builder;
pub use eager::HookId;
pub(crate) use engine::PreparedOp;
pub(crate) use expr::ExprValue;
pub use expr::{Arg, Arg::New, Expr};
pub use function::Function;
pub(crate) use function::FunctionCall;
pub use guards::{NameScopeGuard, SiteGuard};
pub use snapshot::ProgramSnapshot;
pub use transaction::Transaction;
pub use value::{Hook, Value};
pub(crate) use value::{SourceValue, TapeNode, ValueSettings};
