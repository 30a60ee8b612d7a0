//! Operators that are run as soon as they are described, and what they remember.
//!
//! Must not know programs, nor how derivatives are put together: that is the tape's.

mod engine;
mod function;
mod ready;
mod value;

pub(crate) use engine::Eager;
pub(crate) use function::Applied;
pub use function::Function;
pub(crate) use ready::{Ready, Rule, RuleStep, Source};
pub use value::Value;
pub(crate) use value::{Call, Given, Made, Node, Reading};
