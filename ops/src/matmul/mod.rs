//! Matrix products.

mod flattened;
mod fused_sgd;
mod products;
mod v2;

pub use flattened::{Mul, MulGrad};
pub use fused_sgd::MatmulV2GradSgd;
pub use v2::{MatmulV2, MatmulV2Grad};
