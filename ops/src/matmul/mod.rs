//! Matrix products.

mod flattened;
mod products;
mod step;
mod v2;

pub use flattened::{Mul, MulGrad};
pub use step::MatmulV2GradSgd;
pub use v2::{MatmulV2, MatmulV2Grad};
