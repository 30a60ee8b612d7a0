//! Comparisons of two tensors of one dtype, which broadcast as those of `elementwise_add`.

pub use autobwd::operators::{Equal, GreaterEqual, GreaterThan, LessEqual, LessThan, NotEqual};
