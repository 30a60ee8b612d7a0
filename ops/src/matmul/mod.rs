//! Matrix products.

mod addmm;
mod batch_fc;
mod batched;
mod dot;
mod flattened;
mod forms;
mod fused_sgd;
mod kron;
mod packed;
mod products;
mod quantized;
mod v2;

pub use addmm::{Addmm, AddmmGrad};
pub use batch_fc::BatchFc;
pub use batched::{Bmm, BmmGrad, Matmul, MatmulGrad};
pub use dot::{Dot, DotGrad, Mv, MvGrad};
pub use flattened::{Mul, MulGrad};
pub use forms::{BilinearTensorProduct, Fsp, MultiDot};
pub use fused_sgd::MatmulV2GradSgd;
pub use kron::{Kron, KronGrad};
pub use packed::PackedMatmul;
pub(crate) use quantized::NF4;
pub use quantized::{QuantizedKind, QuantizedMatmul};
pub(crate) use v2::product;
pub use v2::{MatmulV2, MatmulV2Grad};
