//! The operator `blocked_depthwise_conv2d`.

use autobwd::{
    Buf, Composed, Composition, Cx, Expr, Infer, Kernel, Meta, New, Result, Var,
    check::*,
    emit,
    op::{CHANNEL_BLOCK, DepthwiseProducts, DividedMat, WindowAxis, with_float},
    register_op,
    tensor::Dim,
};

use super::{
    Activation, ActivationAttrs, BlockedConvAttrs, blocks, channels_first, check_bias, check_blocks,
    in_blocks,
    spans::{Span, spans},
};
use crate::{
    Math,
    conv::Conv2dOp,
    kernel_helpers::nth,
    math::positions,
    padded_images::PaddedImages,
    windows::{Windows, dims},
};

/// Bytes of results of a worker that stay in the nearest caches.
const BAND: usize = 1 << 15;
/// The most elements of an image that is copied.
const COPIED: usize = 1 << 14;

/// Convolution of each channel of images in blocks with a filter of its own: `output = f(depthwise_conv2d(input, filter) + bias)`.
#[register_op(grad = Composed, infallible)]
pub struct BlockedDepthwiseConv2d<V = Var> {
    /// Images in blocks, `[n, blocks, height, width, 16]`.
    #[input]
    pub input: V,
    /// Filters, `[blocks, height, width, 16]`.
    #[input]
    pub filter: V,
    /// Bias of each filter, one dimension.
    #[input]
    pub bias: V,
    /// Images in blocks.
    #[output]
    pub output: V,
    /// Position of the windows.
    #[attrs]
    pub conv: BlockedConvAttrs,
    /// The function of the results.
    #[attrs]
    pub activation: ActivationAttrs,
}
impl Infer for BlockedDepthwiseConv2d<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.filter.same_dtype(&self.input)?;
        let [filters, height, width, lanes]: [Dim; 4] = self.filter.unpack()?;
        let [n, count, rows, columns] = check_blocks(&self.input)?;
        let fits = filters.agrees(count) && lanes.agrees(Dim::from(CHANNEL_BLOCK));
        self.filter.require(fits, || format!("{count} blocks of {CHANNEL_BLOCK} filters are needed"))?;
        let empty = height == 0 || width == 0;
        self.filter.require(!empty, || "windows of at least one element are needed".into())?;
        check_bias(&self.bias, &self.input, filters)?;
        let [rows, columns] = self.conv.convolved(&self.input, [rows, columns], [height, width])?;
        self.output.set(self.input.dtype, blocks([n, filters, rows, columns]));
        Ok(())
    }

    fn flops(&self) -> Dim {
        let dims = &self.filter.dims;
        Dim::from(2) * self.output.dims.numel() * dims[1] * dims[2]
    }
}
/// Sizes of a convolution of single channels.
struct Sizes {
    /// Height and width of images, of filters and of results.
    x: [usize; 2],
    kernel: [usize; 2],
    y: [usize; 2],
    windows: [Windows; 2],
}

impl Sizes {
    fn of(op: &BlockedDepthwiseConv2d<Buf<'_>>) -> Result<Sizes> {
        let [_, kernel_rows, kernel_columns, _] = dims(&op.filter)?;
        let ([_, _, height, width, _], [_, _, rows, columns, _]) = (dims(&op.input)?, dims(&op.output)?);
        let (axes, kernel) = (op.conv.axes()?, [kernel_rows, kernel_columns]);
        let windows = [axes[0].windows(kernel[0], height), axes[1].windows(kernel[1], width)];
        Ok(Sizes { x: [height, width], kernel, y: [rows, columns], windows })
    }

    fn images(&self) -> PaddedImages {
        PaddedImages { size: self.x, apart: [1; 2], windows: self.windows, count: self.y }
    }

    /// Elements of a copy with padding; none if images are large.
    fn copied(&self) -> usize {
        let is_padded = self.windows.iter().any(|w| w.before > 0 || w.after > 0);
        let len = self.images().len();
        if is_padded && len <= COPIED { len } else { 0 }
    }

    /// The windows of `spans` of images of such a width.
    fn products<'a, T>(
        &self,
        (x, width): (&'a [T], usize),
        (filters, bias, bounds): (&'a [T], &'a [T; CHANNEL_BLOCK], [T; 2]),
        [vertical, horizontal]: [&Span; 2],
    ) -> DepthwiseProducts<'a, T> {
        let [down, across] = &self.windows;
        let tap = vertical.taps.start * self.kernel[1] + horizontal.taps.start;
        let axis = |count, x, other| WindowAxis { count, x: x * CHANNEL_BLOCK, other: other * CHANNEL_BLOCK };
        DepthwiseProducts {
            x: &x[((vertical.x * width + horizontal.x) * CHANNEL_BLOCK).min(x.len())..],
            filters: &filters[tap * CHANNEL_BLOCK..],
            bias,
            bounds,
            elements: [
                axis(vertical.taps.len(), down.dilation * width, self.kernel[1]),
                axis(horizontal.taps.len(), across.dilation, 1),
            ],
            windows: [
                axis(vertical.windows.len(), down.stride * width, self.y[1]),
                axis(horizontal.windows.len(), across.stride, 1),
            ],
        }
    }
}

impl Kernel for BlockedDepthwiseConv2d<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let sizes = Sizes::of(self)?;
        let ([filters, ..], [height, width]) = (dims::<4>(&self.filter)?, sizes.x);
        let ([rows, columns], [down, across], copied) = (sizes.y, sizes.windows, sizes.copied());
        let (row, plane) = (columns * CHANNEL_BLOCK, height * width * CHANNEL_BLOCK);
        with_float!(self.input, T => {
            let (x, filter, bias) = (self.input.slice::<T>()?, self.filter.slice::<T>()?, self.bias.slice::<T>()?);
            let (bias, bounds) = (bias.as_chunks::<CHANNEL_BLOCK>().0, self.activation.bounds::<T>(false));
            let band = (BAND / (row * size_of::<T>()).max(1)).clamp(1, rows.max(1));
            let band = if copied > 0 { rows } else { band };
            let out = DividedMat { data: self.output.slice_mut::<T>()?, cols: rows * row, part: [1, band * row] };
            cx.scratch(copied * cx.threads(), |scratch| {
                cx.try_zip_submatrices_mut([out], scratch, |[block, number], [mut out], copy| {
                    let channels = block % filters;
                    let of_channels = nth(filter, channels, sizes.kernel[0] * sizes.kernel[1] * CHANNEL_BLOCK);
                    let factors = (of_channels, &bias[channels], bounds);
                    let (x, out) = (nth(x, block, plane), out.row(0));
                    if copied > 0 {
                        sizes.images().copy(x, copy);
                        sizes.images().products(copy, factors).write(out)?;
                    } else {
                        let first = number * band;
                        for vertical in spans(down, height, first..rows.min(first + band)) {
                            for horizontal in spans(across, width, 0..columns) {
                                let products = sizes.products((x, width), factors, [&vertical, &horizontal]);
                                let at = (vertical.windows.start - first) * row;
                                products.write(&mut out[at + horizontal.windows.start * CHANNEL_BLOCK..])?;
                            }
                        }
                    }
                    self.activation.finish(out, None);
                    Ok(())
                })
            })
        })
    }

    fn scratch_bytes(&self, workers: usize) -> usize {
        Sizes::of(self).map_or(0, |sizes| sizes.copied() * workers * self.input.dtype().size())
    }
}
impl Composition for BlockedDepthwiseConv2d<Expr> {
    fn compose(&mut self) {
        let (x, filter) = (channels_first(&self.input), &self.filter);
        let channels = filter.dim(0) * CHANNEL_BLOCK as i64;
        let dims = [channels.clone(), 1.into(), filter.dim(1), filter.dim(2)];
        let filter = filter.transpose(&[0, 3, 1, 2]).reshape_to(&dims);
        // Filters of other channels are zeros, since the number of groups may be unknown.
        let channel = positions(x.builder(), &channels);
        let is_own = channel.unsqueeze(&[1]).equal(&channel).cast(x.dtype()).unsqueeze(&[2, 3]);
        let conv = self.conv.plain();
        let op = Conv2dOp { input: (&x).into(), filter: (&(filter * is_own)).into(), output: New, conv };
        self.output = self.activation.of(&in_blocks(&(emit(op).output + self.bias.unsqueeze(&[1, 2]))));
    }
}
autobwd::samples!(
    BlockedDepthwiseConv2d,
    [
        depthwise([2, 1, 4, 5, 16], [1, 3, 2, 16]),
        BlockedDepthwiseConv2d {
            conv: BlockedConvAttrs::default().paddings([1, 2]),
            ..depthwise([1, 2, 3, 14, 16], [2, 3, 5, 16])
        },
        BlockedDepthwiseConv2d {
            conv: BlockedConvAttrs::default().paddings([1, 1]).strides([1, 2]),
            ..depthwise([1, 1, 3, 20, 16], [1, 2, 3, 16])
        },
        BlockedDepthwiseConv2d {
            conv: BlockedConvAttrs::default().paddings([2, 2]).strides([2, 2]),
            ..depthwise([1, 1, 5, 12, 16], [1, 5, 5, 16])
        },
        BlockedDepthwiseConv2d {
            conv: BlockedConvAttrs::default().paddings([0, 3]),
            // Without a kink near the results.
            activation: ActivationAttrs {
                fuse_activation: Activation::HardSigmoid,
                fuse_alpha: 0.0625,
                fuse_beta: 0.5,
            },
            ..depthwise([1, 1, 3, 11, 16], [1, 2, 7, 16])
        },
        BlockedDepthwiseConv2d {
            conv: BlockedConvAttrs::default().dilations([1, 2]).paddings([0, 1, 2, 0]),
            activation: ActivationAttrs::default().fuse_activation(Activation::Swish).fuse_beta(1.5_f32),
            ..depthwise([1, 1, 4, 7, 16], [1, 2, 3, 16])
        },
        depthwise([0, 1, 4, 5, 16], [1, 3, 2, 16]),
        depthwise([2, 0, 4, 5, 16], [0, 3, 2, 16]),
        depthwise([2, 1, 4, 5, 16], [2, 3, 2, 16]).fails("`Filter`: 1 blocks of 16 filters are needed"),
        depthwise([2, 1, 4, 5, 16], [1, 0, 2, 16])
            .fails("`Filter`: windows of at least one element are needed"),
        depthwise([2, 1, 4, 5, 16], [1, 5, 2, 16])
            .fails("`Input`: at least 5 rows and columns are needed for a window"),
        BlockedDepthwiseConv2d { bias: uniform([3]), ..depthwise([2, 1, 4, 5, 16], [1, 3, 2, 16]) }
            .fails("`Bias`: a number for each of 16 channels is needed"),
    ]
);

fn depthwise(input: [usize; 5], filter: [usize; 4]) -> BlockedDepthwiseConv2d<Draw> {
    BlockedDepthwiseConv2d {
        input: uniform(input),
        filter: uniform(filter),
        bias: uniform([filter[0] * CHANNEL_BLOCK]),
        output: out(),
        conv: BlockedConvAttrs::default(),
        activation: ActivationAttrs::default(),
    }
}
