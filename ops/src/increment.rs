//! The operator `increment`.

pub use autobwd::operators::{Increment, IncrementGrad};
