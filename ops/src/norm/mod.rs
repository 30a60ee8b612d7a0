//! Operators of batch, layer, group, instance, local response, root mean square and spectral normalisation.
//!
//! Second derivatives, and gradients that gradient operators leave out, come from compositions.

use autobwd::{Meta, Result};

mod batch;
mod decomposition;
mod group;
mod group_gradient;
mod layer;
mod local_response;
mod root_mean_square;
mod spectral;
mod tiling;

pub(crate) use tiling::NormTiling;

pub use batch::{BatchNormGrad, BatchNormOp, BatchNormRule};
pub use group::{GroupNormGrad, GroupNormOp, InstanceNormGrad, InstanceNormOp};
pub use layer::{LayerNormGrad, LayerNormOp};
pub use local_response::{Lrn, LrnLayout};
pub use root_mean_square::RmsNormOp;
pub use spectral::SpectralNorm;

/// Checks that a parameter or statistic has the dtype of `x`, or float32 if `x` has 16 bits.
fn check_parameter_dtype(parameter: &Meta, x: &Meta) -> Result<()> {
    if parameter.dtype == x.dtype.arithmetic() { Ok(()) } else { parameter.same_dtype(x) }
}

autobwd::op::attr_enum! {
    /// Position of the channel dimension.
    pub enum DataLayout {
        /// Samples, channels, positions.
        Nchw = "NCHW",
        /// Samples, positions, channels.
        Nhwc = "NHWC",
    }
}

impl DataLayout {
    /// The channel dimension of a tensor of that rank.
    pub(crate) fn channels(self, rank: usize) -> usize {
        match self {
            DataLayout::Nchw => 1,
            DataLayout::Nhwc => rank - 1,
        }
    }

    /// All dimensions of a tensor of that rank except the channel dimension.
    pub(crate) fn but_channels(self, rank: usize) -> Vec<i32> {
        (0..rank).filter(|axis| *axis != self.channels(rank)).map(|axis| axis as i32).collect()
    }

    /// The `axis` with which a vector of channels broadcasts.
    pub(crate) fn axis(self) -> i32 {
        match self {
            DataLayout::Nchw => 1,
            DataLayout::Nhwc => -1,
        }
    }
}
