//! Operators of images: shuffling of pixels and channels, padding, and sampling at positions.

mod grid_sampler;
mod pad3d;
mod shuffle;

pub use grid_sampler::{GridMode, GridPadding, GridSampler, GridSamplerGrad};
pub use pad3d::{Pad3d, Pad3dGrad, PadMode, VolumeLayout};
pub use shuffle::{
    ChannelShuffle, ChannelShuffleGrad, PixelShuffle, PixelShuffleGrad, PixelUnshuffle, PixelUnshuffleGrad,
};
