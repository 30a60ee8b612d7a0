//! Tensors brought to mean 0 and variance 1.
//!
//! Normalising by channels is the general case: any other is that of a tensor in the shape `[1, rows, width]`, of which
//! each row is a channel. Gradients of gradients are composed of it, so they can be differentiated further.

mod batch;
mod channels;
mod cut;
mod group;
mod layer;
mod rows;

pub(crate) use cut::{Cut, sums};

pub use batch::{BatchNorm, BatchNormGrad, BatchNormGradRule, BatchNormRule};
pub use group::{GroupNorm, GroupNormRule, InstanceNorm, InstanceNormRule};
pub use layer::{LayerNorm, LayerNormGrad, LayerNormGradRule, LayerNormRule};

autobwd::attr_enum! {
    /// Where the channels of a tensor are.
    pub enum DataLayout {
        /// Samples, channels, positions.
        Nchw = "NCHW",
        /// Samples, positions, channels.
        Nhwc = "NHWC",
    }
}

impl DataLayout {
    /// The dimension of the channels, of so many.
    pub(crate) fn channels(self, rank: usize) -> usize {
        match self {
            DataLayout::Nchw => 1,
            DataLayout::Nhwc => rank - 1,
        }
    }

    /// Where a vector of channels starts, for operators that broadcast.
    pub(crate) fn axis(self) -> i32 {
        match self {
            DataLayout::Nchw => 1,
            DataLayout::Nhwc => -1,
        }
    }
}
