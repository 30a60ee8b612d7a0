//! Memory layout of the images on either side of a convolution.

use std::ops::Range;

use autobwd::{
    Cx, Result,
    op::{Mat, Strided},
};

use super::{gemm_conv::ConvGroup, storage::ConvElement};
use crate::{kernel_helpers::nth, norm::DataLayout};

/// The images on one side. They are divided into units: an image, or, where the groups of channels are contiguous, one
/// group of an image.
pub(super) struct ImageLayout {
    /// Channels of a group.
    pub(super) channels: usize,
    /// Height and width.
    pub(super) size: [usize; 2],
    /// Groups of a unit.
    pub(super) inside: usize,
    pub(super) format: DataLayout,
}

impl ImageLayout {
    pub(super) fn pixels(&self) -> usize {
        self.size[0].saturating_mul(self.size[1])
    }

    /// Elements of a unit.
    pub(super) fn len(&self) -> usize {
        self.pixels().saturating_mul(self.channels * self.inside)
    }

    /// Strides of channels and of pixels.
    pub(super) fn steps(&self) -> (usize, usize) {
        match self.format {
            DataLayout::Nchw => (self.pixels(), 1),
            DataLayout::Nhwc => (1, self.channels * self.inside),
        }
    }

    /// Offset of a group within its unit.
    pub(super) fn start(&self, group: ConvGroup) -> usize {
        group.inside * self.channels
    }

    /// The images from the start of a group to the end of its unit.
    pub(super) fn group<'a, T>(&self, all: &'a [T], group: ConvGroup) -> &'a [T] {
        &nth(all, group.unit, self.len())[self.start(group)..]
    }

    /// A group, and all elements after it.
    pub(super) fn group_onwards<'a, T>(&self, all: &'a [T], group: ConvGroup) -> &'a [T] {
        &all[group.unit * self.len() + self.start(group)..]
    }

    /// Some pixels of a group as a matrix, `[channels, pixels]`.
    pub(super) fn matrix<'a, T>(&self, group: &'a [T], pixels: Range<usize>) -> Strided<'a, T> {
        let ((channel, pixel), (channels, n)) = (self.steps(), (self.channels, pixels.len()));
        let data = &group[pixels.start * pixel..];
        match self.format {
            DataLayout::Nchw => {
                Strided { mat: Mat { data, rows: channels, cols: n, transposed: false }, stride: channel }
            }
            DataLayout::Nhwc => {
                Strided { mat: Mat { data, rows: n, cols: channels, transposed: true }, stride: pixel }
            }
        }
    }

    /// Writes or adds the product of `[channels, k]` and `[k, pixels]` to the pixels of a group from `first` on.
    pub(super) fn put<T: ConvElement>(
        &self,
        cx: &Cx,
        group: &mut [T::Sum],
        first: usize,
        add: bool,
        x: Strided<'_, T>,
        y: Strided<'_, T>,
    ) -> Result<()> {
        let (channel, pixel) = self.steps();
        let out = &mut group[first * pixel..];
        match self.format {
            DataLayout::Nchw => cx.product_strided(out, channel, add, x, y),
            DataLayout::Nhwc => cx.product_strided(out, pixel, add, y.t(), x.t()),
        }
    }
}
