//! Operators of images: shuffling of pixels and channels, padding, sampling at positions, and windows as columns.

mod affine_grid;
mod grid_sampler;
mod pad2d;
mod pad3d;
mod shuffle;
mod temporal_shift;
mod unfold;

pub use affine_grid::{AffineGrid, AffineGridGrad};
pub use grid_sampler::{GridMode, GridPadding, GridSampler, GridSamplerGrad};
pub use pad2d::{EdgeMode, Pad2d};
pub use pad3d::{Pad3d, Pad3dGrad, PadMode, VolumeLayout};
pub use shuffle::{
    ChannelShuffle, ChannelShuffleGrad, PixelShuffle, PixelShuffleGrad, PixelUnshuffle, PixelUnshuffleGrad,
};
pub use temporal_shift::{TemporalShift, TemporalShiftGrad};
pub use unfold::{Fold, FoldGrad, Unfold, UnfoldGrad, WindowAttrs};

pub(crate) use unfold::PlaneWindows;
