//! Counting up.

pub use autobwd::operators::{Increment, IncrementGrad};
