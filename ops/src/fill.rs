//! Operators that fill a tensor with a constant.

pub use autobwd::operators::{FillAnyLike, FillConstant, FillZerosLike};
