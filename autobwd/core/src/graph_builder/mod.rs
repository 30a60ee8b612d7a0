//! Expressions and builders: code that reads like mathematics appends operators to a program, or computes them eagerly.
//!
//! Must not know how programs run or how gradients are derived. It knows no operator: all come through [`emit`].

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
