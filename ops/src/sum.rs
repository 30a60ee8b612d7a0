//! The operator `sum` of several tensors or sparse gradients, which accumulates gradients in backward passes.

pub use autobwd::operators::{Sum, SumGrad};
