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

pub use forward::{
    Conv2d, Conv2dGrad, Conv2dGradGrad, DepthwiseConv2d, DepthwiseConv2dGrad, DepthwiseConv2dGradGrad,
};
pub use transpose::{Conv2dTranspose, Conv2dTransposeGrad, Conv2dTransposeGradGrad, Conv2dTransposeRule};

use autobwd::{Buf, Dim, Dims, Error, Meta, Result};

use crate::{
    image::{Axis, PaddingAlgorithm, axes, dims, pair},
    norm::DataLayout,
};
use kernel::Convolution;

/// The attributes that all of them have.
struct Attrs<'a> {
    strides: &'a [i32],
    paddings: &'a [i32],
    padding_algorithm: PaddingAlgorithm,
    dilations: &'a [i32],
    groups: i32,
    data_format: DataLayout,
}

macro_rules! attrs {
    ($op:expr) => {
        Attrs {
            strides: &$op.strides,
            paddings: &$op.paddings,
            padding_algorithm: $op.padding_algorithm,
            dilations: &$op.dilations,
            groups: $op.groups,
            data_format: $op.data_format,
        }
    };
}
use attrs;

/// An operator with these slots, and others, and the attributes of `$of`.
macro_rules! with_attrs {
    ($op:ident { $($slot:ident),* }, $of:expr) => {
        $op {
            $($slot,)*
            strides: $of.strides.clone(),
            paddings: $of.paddings.clone(),
            padding_algorithm: $of.padding_algorithm,
            dilations: $of.dilations.clone(),
            groups: $of.groups,
            data_format: $of.data_format,
        }
    };
}
use with_attrs;

impl Attrs<'_> {
    fn axes(&self) -> Result<[Axis; 2]> {
        axes(self.strides, self.paddings, self.padding_algorithm, self.dilations)
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
            if let Some(sizes) = sizes {
                let possible = least..least.saturating_add(windows.stride);
                return match possible.contains(&sizes[i]) {
                    true => Ok(sizes[i].into()),
                    false => {
                        Err(Error::attr("output_size", format!("{} is not within {possible:?}", sizes[i])))
                    }
                };
            }
            let (more, limit) =
                (paddings.map_or(0, |paddings| paddings[i]), windows.stride.max(windows.dilation));
            match more < limit {
                true => Ok(least.saturating_add(more).into()),
                false => Err(Error::attr(
                    "output_padding",
                    format!("{more} is not below stride or dilation, {limit}"),
                )),
            }
        };
        let size = [length(0)?, length(1)?];
        Ok(self.data_format.join(images, share * (self.groups as usize).into(), size).into_iter().collect())
    }

    /// The convolution of `x` with `filter` to `y`; paddings by algorithm are those for the images `over`.
    fn kernel(&self, x: &Buf<'_>, filter: &Buf<'_>, y: &Buf<'_>, over: &Buf<'_>) -> Result<Convolution> {
        let ((_, _, size), [_, _, kernel @ ..], axes) =
            (self.data_format.split(dims(over)?), dims(filter)?, self.axes()?);
        let windows = [0, 1].map(|i| axes[i].windows(kernel[i], size[i]));
        Convolution::new(self.data_format, self.groups as usize, windows, x, filter, y)
    }
}

/// What gradient operators say about the gradient of the output.
fn same_shape(dout: &Meta, input: &Meta, dims: &Dims) -> Result<()> {
    dout.same_dtype(input)?;
    dout.require(dout.dims.agrees(dims), || format!("the shape of the convolution, {dims}, is needed"))
}
