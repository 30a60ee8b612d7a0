//! Describing a model so that it reads like mathematics: expressions that append operators to a program, or compute them
//! at once.
//!
//! Must not know how programs run, nor how derivatives are put together. It knows no operator: all
//! come through [`emit`].

mod append;
mod builder;
mod eager;
mod engine;
mod expr;
mod function;
mod snapshot;
mod transaction;
mod value;

pub use append::{MakeDesc, OpArgs, emit};
pub use builder::Builder;
pub use eager::HookId;
pub use engine::{Engine, Ready};
pub(crate) use expr::Held;
pub use expr::{Arg, Arg::New, Expr};
pub use function::{Applied, Function, describe_function};
pub use snapshot::ProgramSnapshot;
pub use transaction::Transaction;
pub use value::{Call, Given, Hook, Made, Node, Reading, Value, Watch};
