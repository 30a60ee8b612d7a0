//! Tensors brought to mean 0 and variance 1.
//!
//! Second derivatives, and what gradient operators leave out, are those of compositions.

mod batch;
mod composing;
mod cut;
mod group;
mod layer;

pub(crate) use cut::{Cut, sums};

pub use batch::{BatchNormGrad, BatchNormOp, BatchNormRule};
pub use group::{GroupNormOp, InstanceNormOp};
pub use layer::{LayerNormGrad, LayerNormOp};

autobwd::op::attr_enum! {
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

    /// All dimensions but that of the channels, of so many.
    pub(crate) fn but_channels(self, rank: usize) -> Vec<i32> {
        (0..rank).filter(|axis| *axis != self.channels(rank)).map(|axis| axis as i32).collect()
    }

    /// Where a vector of channels starts, for operators that broadcast.
    pub(crate) fn axis(self) -> i32 {
        match self {
            DataLayout::Nchw => 1,
            DataLayout::Nhwc => -1,
        }
    }
}
