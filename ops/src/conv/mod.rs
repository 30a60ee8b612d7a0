//! Convolutions of images.
//!
//! As everywhere in the field, filters are not mirrored: these are correlations. All are linear in images and in filters,
//! so that gradients of gradients are convolutions again.

mod columns;
mod direct;
mod forward;
mod kernel;
mod side;
mod transpose;

pub use forward::{Conv2d, Conv2dGrad, DepthwiseConv2d, DepthwiseConv2dGrad};
pub use transpose::{Conv2dTranspose, Conv2dTransposeGrad, Conv2dTransposeRule};

use autobwd::{Attrs, Buf, Dims, Error, Meta, Result, tensor::Dim};

use crate::{
    image::{Axis, PaddingAlgorithm, axes, dims, pair},
    norm::DataLayout,
};
use kernel::Convolution;
use side::Side;

/// The attributes of convolutions.
#[derive(Attrs, Clone, Debug)]
pub struct ConvAttrs {
    /// From one window to the next, down and across.
    #[attr(default = [1, 1])]
    pub strides: Vec<i32>,
    /// How far windows reach over the edges: down and across, or top, bottom, left and right.
    #[attr(default = [0, 0])]
    pub paddings: Vec<i32>,
    /// Whether `paddings` counts.
    #[attr(default = PaddingAlgorithm::Explicit)]
    pub padding_algorithm: PaddingAlgorithm,
    /// From one element under a window to the next, down and across.
    #[attr(default = [1, 1])]
    pub dilations: Vec<i32>,
    /// Shares of channels that have filters of their own.
    #[attr(default = 1, min = 1)]
    pub groups: i32,
    /// Order of the dimensions of images.
    #[attr(default = DataLayout::Nchw)]
    pub data_format: DataLayout,
}

impl ConvAttrs {
    fn axes(&self) -> Result<[Axis; 2]> {
        axes(&self.strides, &self.paddings, self.padding_algorithm, &self.dilations)
    }

    /// Images, channels and size of `input`, and the dimensions of `filter`, with what holds for all of them.
    fn check(&self, input: &Meta, filter: &Meta) -> Result<(Dim, Dim, [Dim; 2], [Dim; 4])> {
        input.float()?;
        filter.same_dtype(input)?;
        let (images, channels, size) = self.data_format.split(input.unpack()?);
        let filters: [Dim; 4] = filter.unpack()?;
        let even = filters[0].get().is_none_or(|n| n.is_multiple_of(self.groups as usize));
        filter.require(even, || format!("filters that make {} groups are needed", self.groups))?;
        let empty = filters[2] == 0 || filters[3] == 0;
        filter.require(!empty, || "windows of at least one element are needed".into())?;
        Ok((images, channels, size, filters))
    }

    /// The shape of the convolution of `input` with `filter`.
    fn convolved(&self, input: &Meta, filter: &Meta) -> Result<Dims> {
        let (images, channels, size, [filters, share, kernel @ ..]) = self.check(input, filter)?;
        let groups = self.groups as usize;
        filter.require((share * groups.into()).agrees(channels), || {
            format!("filters of {channels} channels in {groups} groups are needed")
        })?;
        let axes = self.axes()?;
        let count = |i: usize| {
            let (Some(kernel), Some(size)) = (kernel[i].get(), size[i].get()) else {
                return Ok(Dim::UNKNOWN);
            };
            let windows = axes[i].windows(kernel, size);
            windows.count(size, false).map(Dim::from).ok_or_else(|| windows.too_large(input))
        };
        let size = [count(0)?, count(1)?];
        Ok(self.data_format.join(images, filters, size).into_iter().collect())
    }

    /// The shape of what `input` is the convolution of. As several are, `output_size` or `output_padding` may say which.
    fn transposed(
        &self,
        input: &Meta,
        filter: &Meta,
        output_size: &[i32],
        output_padding: &[i32],
    ) -> Result<Dims> {
        let (images, channels, size, [filters, share, kernel @ ..]) = self.check(input, filter)?;
        filter.require(filters.agrees(channels), || format!("filters for {channels} channels are needed"))?;
        let (axes, given) = (self.axes()?, (!output_size.is_empty(), !output_padding.is_empty()));
        let sizes = given.0.then(|| pair("output_size", output_size, 1)).transpose()?;
        let paddings = given.1.then(|| pair("output_padding", output_padding, 0)).transpose()?;
        let length = |i: usize| {
            let (Some(kernel), Some(size)) = (kernel[i].get(), size[i].get()) else {
                return Ok(sizes.map_or(Dim::UNKNOWN, |sizes| sizes[i].into()));
            };
            let windows = axes[i].windows(kernel, size);
            let needed = || input.wrong("more rows and columns than paddings take away are needed");
            let least = windows.covered(size).ok_or_else(needed)?;
            if let Some(size) = sizes.map(|sizes| sizes[i]) {
                let possible = least..least.saturating_add(windows.stride);
                let refuse = || Error::attr("output_size", format!("{size} is not within {possible:?}"));
                return possible.contains(&size).then(|| size.into()).ok_or_else(refuse);
            }
            let (more, limit) = (paddings.map_or(0, |more| more[i]), windows.stride.max(windows.dilation));
            let text = || format!("{more} is not below stride or dilation, {limit}");
            let refuse = || Error::attr("output_padding", text());
            (more < limit).then(|| least.saturating_add(more).into()).ok_or_else(refuse)
        };
        let size = [length(0)?, length(1)?];
        Ok(self.data_format.join(images, share * (self.groups as usize).into(), size).into_iter().collect())
    }

    /// The convolution of `x` with `filter` to `y`; paddings by algorithm are those for the images `over`.
    fn kernel(&self, [x, filter, y, over]: [&Buf<'_>; 4]) -> Result<Convolution> {
        let (format, groups, axes) = (self.data_format, self.groups as usize, self.axes()?);
        let [filters, share, kernel @ ..] = dims(filter)?;
        let [(images, _, x), (_, _, y), (_, _, over)] =
            [dims(x)?, dims(y)?, dims(over)?].map(|images| format.split(images));
        let windows = [0, 1].map(|i| axes[i].windows(kernel[i], over[i]));
        let inside = if format == DataLayout::Nhwc { groups } else { 1 };
        let side = |channels, size| Side { channels, size, inside, format };
        let (x, y) = (side(share, x), side(filters / groups, y));
        Ok(Convolution { images, groups, x, y, windows })
    }

    /// Scratch memory of a kernel, with the gradient of the filters or without.
    fn scratch_bytes(&self, slots: [&Buf<'_>; 4], filters: bool, workers: usize) -> usize {
        let kernel = self.kernel(slots);
        kernel.map_or(0, |kernel| kernel.scratch(filters, workers) * slots[0].dtype().size())
    }
}

/// What rows of samples begin with.
fn plain() -> ConvAttrs {
    ConvAttrs::default()
}

/// The same for images with channels last.
fn nhwc() -> ConvAttrs {
    plain().data_format(DataLayout::Nhwc)
}

fn same() -> ConvAttrs {
    plain().padding_algorithm(PaddingAlgorithm::Same)
}

fn valid() -> ConvAttrs {
    plain().padding_algorithm(PaddingAlgorithm::Valid)
}
