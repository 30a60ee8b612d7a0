//! Convolutions of images and volumes.
//!
//! As usual in deep learning, filters are not mirrored: these are cross-correlations. All are linear in images and in
//! filters, so their double gradients are convolutions, too.

mod channel_lanes;
mod conv3d;
mod deformable;
mod direct;
mod forward;
mod gemm_conv;
mod gradients;
mod im2col;
mod image_layout;
mod row_conv;
mod small_images;
mod storage;
mod transpose;
mod transpose3d;
mod transpose_depthwise;
mod volume;
mod winograd;

pub use conv3d::{Conv3dAttrs, Conv3dGrad, Conv3dOp};
pub use deformable::{DeformableConv, DeformableConvAttrs, DeformableConvV1};
pub use forward::{Conv2dGrad, Conv2dOp, DepthwiseConv2d, DepthwiseConv2dGrad};
pub use row_conv::RowConv;
pub use transpose::{Conv2dTransposeGrad, Conv2dTransposeOp, Conv2dTransposeRule};
pub use transpose_depthwise::DepthwiseConv2dTranspose;
pub use transpose3d::Conv3dTransposeOp;

use autobwd::{
    Attrs, Buf, Cx, Dims, Meta, Result,
    op::{Factor, with_factor},
    tensor::Dim,
};

use crate::{
    norm::DataLayout,
    windows::{AxisWindows, PaddingAlgorithm, Windows, axes, dims, window_counts},
};
use gemm_conv::{ConvPart, Convolution};
use image_layout::ImageLayout;

/// The attributes of convolutions.
#[derive(Attrs, Clone, Debug)]
pub struct ConvAttrs {
    /// Strides of the windows, vertical and horizontal.
    #[attr(default = [1, 1])]
    pub strides: Vec<i32>,
    /// Padding: vertical and horizontal, or top, bottom, left and right.
    #[attr(default = [0, 0])]
    pub paddings: Vec<i32>,
    /// Whether padding is explicit, `SAME` or `VALID`.
    #[attr(default = PaddingAlgorithm::Explicit)]
    pub padding_algorithm: PaddingAlgorithm,
    /// Dilation of the windows, vertical and horizontal.
    #[attr(default = [1, 1])]
    pub dilations: Vec<i32>,
    /// Number of groups of channels, each with filters of its own.
    #[attr(default = 1, min = 1)]
    pub groups: i32,
    /// Order of the dimensions of images (`NCHW`, `NHWC`).
    #[attr(default = DataLayout::Nchw)]
    pub data_format: DataLayout,
}

impl ConvAttrs {
    fn axes(&self) -> Result<[AxisWindows; 2]> {
        axes(&self.strides, &self.paddings, self.padding_algorithm, &self.dilations)
    }

    /// The windows of filters of that size over images of that size, vertical and horizontal.
    ///
    /// # Errors
    /// Invalid attributes.
    pub fn windows(&self, filter: [usize; 2], image: [usize; 2]) -> Result<[Windows; 2]> {
        let axes = self.axes()?;
        Ok([0, 1].map(|i| axes[i].windows(filter[i], image[i])))
    }

    /// Checks both shapes; returns images, channels and size of `input`, and the dimensions of `filter`.
    fn check(&self, input: &Meta, filter: &Meta) -> Result<(Dim, Dim, [Dim; 2], [Dim; 4])> {
        input.float()?;
        filter.same_dtype(input)?;
        let (images, channels, size) = self.data_format.split(input.unpack()?);
        let filters: [Dim; 4] = filter.unpack()?;
        let even = filters[0].get().is_none_or(|n| n.is_multiple_of(self.groups as usize));
        filter
            .require(even, || format!("a number of filters divisible by {} groups is needed", self.groups))?;
        let empty = filters[2] == 0 || filters[3] == 0;
        filter.require(!empty, || "windows of at least one element are needed".into())?;
        Ok((images, channels, size, filters))
    }

    /// The output shape of the convolution of `input` with `filter`.
    fn convolved(&self, input: &Meta, filter: &Meta) -> Result<Dims> {
        let (images, channels, size, [filters, share, kernel @ ..]) = self.check(input, filter)?;
        let groups = self.groups as usize;
        filter.require((share * Dim::from(groups)).agrees(channels), || {
            format!("filters of {channels} channels in {groups} groups are needed")
        })?;
        let size = window_counts(&self.axes()?, input, size, kernel)?;
        Ok(self.data_format.join(images, filters, size).into_iter().collect())
    }

    /// The convolution of `x` with `filter` to `y`; padding algorithms refer to the images `over`.
    fn kernel(&self, [x, filter, y, over]: [&Buf<'_>; 4]) -> Result<Convolution> {
        let (format, groups) = (self.data_format, self.groups as usize);
        let [filters, share, kernel @ ..] = dims::<4>(filter)?;
        let [(images, _, x), (_, _, y), (_, _, over)] =
            [dims::<4>(x)?, dims(y)?, dims(over)?].map(|images| format.split(images));
        let windows = self.windows(kernel, over)?;
        let inside = if format == DataLayout::Nhwc { groups } else { 1 };
        let side = |channels, size| ImageLayout { channels, size, inside, format };
        let (x, y) = (side(share, x), side(filters / groups, y));
        Ok(Convolution { images, groups, x, y, windows })
    }

    fn convolve(&self, cx: &Cx, input: &Buf<'_>, filter: &Buf<'_>, output: &mut Buf<'_>) -> Result<()> {
        let kernel = self.kernel([input, filter, output, input])?;
        with_factor!(input, T => kernel.forward::<T>(cx, input.slice()?, filter.slice()?, output.slice_mut()?))
    }

    /// Computes the wanted gradients, each from the two other slots; `dy` is that of a transposed convolution.
    fn gradients(
        &self,
        cx: &Cx,
        slots @ [x, filter, y, _]: [&Buf<'_>; 4],
        [dx, dy, dfilter]: [&mut Option<Buf<'_>>; 3],
    ) -> Result<()> {
        let kernel = self.kernel(slots)?;
        with_factor!(filter, T => {
            let (x, filter, y) = (x.slice::<T>()?, filter.slice()?, y.slice()?);
            if let Some(dx) = dx {
                kernel.data_grad(cx, filter, y, dx.slice_mut()?)?;
            }
            if let Some(dy) = dy {
                kernel.forward(cx, x, filter, dy.slice_mut()?)?;
            }
            dfilter.as_mut().map_or(Ok(()), |dfilter| kernel.filter_grad(cx, x, y, dfilter.slice_mut()?))
        })
    }

    /// Scratch bytes of a kernel that computes these parts, one after another.
    fn scratch_bytes(
        &self,
        slots: [&Buf<'_>; 4],
        parts: impl IntoIterator<Item = ConvPart>,
        workers: usize,
    ) -> usize {
        let Ok(kernel) = self.kernel(slots) else { return 0 };
        let bytes = |part| {
            with_factor!(slots[0], T => Result::Ok({
                let (columns, sums) = kernel.scratch::<T>(part, workers);
                Cx::scratch_pair_bytes::<T, <T as Factor>::Sum>(columns, sums)
            }))
        };
        parts.into_iter().filter_map(|part| bytes(part).ok()).max().unwrap_or(0)
    }
}

/// The attributes that samples start from.
fn plain() -> ConvAttrs {
    ConvAttrs::default()
}

/// The same with layout `NHWC`.
fn nhwc() -> ConvAttrs {
    plain().data_format(DataLayout::Nhwc)
}

fn same() -> ConvAttrs {
    plain().padding_algorithm(PaddingAlgorithm::Same)
}

fn valid() -> ConvAttrs {
    plain().padding_algorithm(PaddingAlgorithm::Valid)
}
