//! The operator `sum` of several tensors or sparse gradients, which accumulates gradients in backward parts.

pub use autobwd::operators::{Sum, SumGrad};
