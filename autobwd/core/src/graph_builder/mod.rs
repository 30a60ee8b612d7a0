//! Expressions and builders: code that reads like mathematics appends operators to a program, or computes them eagerly.
//!
//! Must not know how programs run or how gradients are derived. It knows no operator: all come through [`emit`].

mod append;
mod builder;
mod eager;
mod engine;
mod expr;
mod function;
mod guards;
mod snapshot;
mod transaction;
mod value;

pub use append::{DescribeFn, OpArgs, emit};
pub use builder::Builder;
pub use eager::HookId;
pub use engine::{Engine, PreparedOp};
pub(crate) use expr::ExprValue;
pub use expr::{Arg, Arg::New, Expr};
pub use function::{Function, FunctionCall, describe_function};
pub use guards::{NameScopeGuard, SiteGuard};
pub use snapshot::ProgramSnapshot;
pub use transaction::Transaction;
pub use value::{Hook, MemoryGuard, NodeOrigin, OpCall, SourceValue, TapeNode, Value, ValueSettings};
