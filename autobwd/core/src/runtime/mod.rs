//! The runtime that kernels use: workers, scratch memory, and matrix products.
//!
//! Must not know operators or programs. Work is divided by its size alone, never by the number of workers, so that
//! results do not depend on it.

mod gemm;
mod isa;
mod lend;
mod owned_thread;
pub mod panics;
mod pool;
mod product;
pub(crate) mod scratch;
mod submatrices;
mod submatrix;
mod transport;
pub(crate) mod worker_spans;

pub use gemm::{
    CHANNEL_BLOCK, DepthwiseProducts, Factor, GemmElement, Levels, Mat, QuantizedMat, Strided, WindowAxis,
    WindowProducts, interleave_channels, separate_channels,
};
pub use isa::{FUSED, Isa, isa};
pub use owned_thread::OwnedThread;
pub use pool::CHUNK;
pub use pool::Cx;
pub use submatrices::DividedMat;
pub use submatrix::SubmatrixMut;
pub use transport::Transport;
