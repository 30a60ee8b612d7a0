//! The sum of several tensors, of which backward parts are full, or of rows of them.

pub use autobwd::operators::{Sum, SumGrad};
