//! Tensors filled with one number.

pub use autobwd::operators::{FillAnyLike, FillConstant, FillZerosLike};
