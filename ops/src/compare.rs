//! Comparisons of two tensors of one dtype, with the broadcasting of `elementwise_add`.

pub use autobwd::operators::{Equal, GreaterEqual, GreaterThan, LessEqual, LessThan, NotEqual};
