//! Images with their channels in blocks of 16, `[n, blocks, height, width, 16]`, and operators on them.
//!
//! Sixteen channels of a pixel are side by side, as the lanes of vectors are, so that convolutions need no copies. The
//! last block is filled up with channels of zeros, whose filters are zeros, too. [`Model::freeze`](crate::Model::freeze)
//! converts images at the ends of a part of a program, and packs filters.

mod activation;
mod conv;
mod depthwise;
mod layout;
mod pool;
mod spans;
mod winograd;

pub use activation::{Activation, ActivationAttrs};
pub use conv::BlockedConv2d;
pub use depthwise::BlockedDepthwiseConv2d;
pub use layout::{ChannelBlocks, FromChannelBlocks};
pub use pool::{BlockedPool2d, BlockedPoolAttrs};
pub use winograd::BlockedWinogradConv2d;
pub(crate) use winograd::filters_at_points;

use autobwd::{Attrs, Dims, Expr, Meta, Result, op::CHANNEL_BLOCK, tensor::Dim};

use crate::{
    Math,
    conv::ConvAttrs,
    math::DimExpr,
    windows::{AxisWindows, PaddingAlgorithm, axes, window_counts},
};

/// The attributes of convolutions of images in blocks.
#[derive(Attrs, Clone, Debug)]
pub struct BlockedConvAttrs {
    /// Strides of the windows, vertical and horizontal.
    #[attr(default = [1, 1])]
    pub strides: Vec<i32>,
    /// Padding: vertical and horizontal, or top, bottom, left and right.
    #[attr(default = [0, 0])]
    pub paddings: Vec<i32>,
    /// Dilation of the windows, vertical and horizontal.
    #[attr(default = [1, 1])]
    pub dilations: Vec<i32>,
}

impl BlockedConvAttrs {
    fn axes(&self) -> Result<[AxisWindows; 2]> {
        axes(&self.strides, &self.paddings, PaddingAlgorithm::Explicit, &self.dilations)
    }

    /// The same attributes for images without blocks.
    fn plain(&self) -> ConvAttrs {
        let BlockedConvAttrs { strides, paddings, dilations } = self.clone();
        ConvAttrs::default().strides(strides).paddings(paddings).dilations(dilations)
    }

    /// Rows and columns of the result for images and filters of these sizes.
    fn convolved(&self, input: &Meta, size: [Dim; 2], kernel: [Dim; 2]) -> Result<[Dim; 2]> {
        window_counts(&self.axes()?, input, size, kernel)
    }
}

/// Checks that images are in blocks; returns their dimensions but for the last.
fn check_blocks(images: &Meta) -> Result<[Dim; 4]> {
    images.float()?;
    let [n, blocks, height, width, lanes] = images.unpack()?;
    let are_blocks = lanes.agrees(Dim::from(CHANNEL_BLOCK));
    images
        .require(are_blocks, || format!("blocks of {CHANNEL_BLOCK} channels are needed as last dimension"))?;
    Ok([n, blocks, height, width])
}

/// Checks that a bias has a number for each channel of some blocks.
fn check_bias(bias: &Meta, images: &Meta, blocks: Dim) -> Result<()> {
    bias.same_dtype(images)?;
    let [numbers] = bias.unpack()?;
    let channels = blocks * Dim::from(CHANNEL_BLOCK);
    bias.require(numbers.agrees(channels), || format!("a number for each of {channels} channels is needed"))
}

/// Images in blocks.
fn blocks([n, blocks, height, width]: [Dim; 4]) -> Dims {
    [n, blocks, height, width, Dim::from(CHANNEL_BLOCK)].into_iter().collect()
}

/// Images in blocks as `[n, channels, height, width]`, with the channels of the last block.
fn channels_first(x: &Expr) -> Expr {
    let channels = x.dim(1) * CHANNEL_BLOCK as i64;
    x.transpose(&[0, 1, 4, 2, 3]).reshape_to(&[x.dim(0), channels, x.dim(2), x.dim(3)])
}

/// Images `[n, channels, height, width]`, whose number of channels is divisible, in blocks.
fn in_blocks(x: &Expr) -> Expr {
    let (lanes, blocks) = (DimExpr::from(CHANNEL_BLOCK as i64), x.dim(1) / CHANNEL_BLOCK as i64);
    x.reshape_to(&[x.dim(0), blocks, lanes, x.dim(2), x.dim(3)]).transpose(&[0, 1, 3, 4, 2])
}
