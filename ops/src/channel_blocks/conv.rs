//! The operator `blocked_conv2d`.

use std::hint::black_box;

use autobwd::{
    Buf, Composed, Composition, Cx, Expr, Infer, Kernel, Meta, New, Result, Var,
    check::*,
    emit,
    op::{
        CHANNEL_BLOCK, DividedMat, LaneOf, VectorLoops, Vectorised, WindowAxis, WindowProducts, map_lanes,
        with_float,
    },
    register_op,
    tensor::{Dim, OptionalBuf},
};

use super::{
    Activation, ActivationAttrs, BlockedConvAttrs, blocks, channels_first, check_bias, check_blocks,
    in_blocks, spans::spans,
};
use crate::{Math, concat, conv::Conv2dOp, kernel_helpers::KernelFloat, math::DimExpr, windows::dims};

/// Bytes of results of a worker that stay in the nearest caches.
const BAND: usize = 1 << 15;
/// Blocks of filters that are multiplied with the same elements of images.
pub(super) const PAIR: usize = 2;

/// Convolution of images in blocks of channels: `output = f(conv2d(input * scales, filter) + bias + residual)`.
///
/// The kernel multiplies filters by the scales of an image, in place of the image: a block of filters is small.
#[register_op(grad = Composed, infallible)]
pub struct BlockedConv2d<V = Var> {
    /// Images in blocks, `[n, blocks, height, width, 16]`, or with channels of their own, `[n, channels, height, width]`.
    #[input]
    pub input: V,
    /// Filters, `[blocks of filters, blocks of channels / groups, height, width, 16, 16]`: channels, and filters of a block
    /// side by side. `[blocks of filters, channels, height, width, 1, 16]` for channels of their own.
    #[input]
    pub filter: V,
    /// Bias of each filter, one dimension.
    #[input]
    pub bias: V,
    /// A factor of each channel of each image in blocks, `[n, blocks, 1, 1, 16]`, as squeeze and excitation computes it.
    #[input]
    pub scales: Option<V>,
    /// Images that are added, with the shape of `output`.
    #[input]
    pub residual: Option<V>,
    /// Images in blocks.
    #[output]
    pub output: V,
    /// Position of the windows.
    #[attrs]
    pub conv: BlockedConvAttrs,
    /// Number of groups of blocks, each with filters of its own.
    #[attr(default = 1, min = 1)]
    pub groups: i32,
    /// Channels of the last block of each group that are multiplied: those after them are taken for zeros.
    #[attr(default = 16, min = 1)]
    pub last_channels: i32,
    /// The function of the results.
    #[attrs]
    pub activation: ActivationAttrs,
}
impl Infer for BlockedConv2d<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.input.float()?;
        self.filter.same_dtype(&self.input)?;
        let [filters, share, height, width, depth, lanes]: [Dim; 6] = self.filter.unpack()?;
        let is_single = self.input.rank() == 4;
        let [n, channels, rows, columns] =
            if is_single { self.input.unpack()? } else { check_blocks(&self.input)? };
        let wanted = if is_single { 1 } else { CHANNEL_BLOCK };
        let groups = Dim::from(self.groups as usize);
        let fits = lanes.agrees(Dim::from(CHANNEL_BLOCK))
            && depth.agrees(Dim::from(wanted))
            && (share * groups).agrees(channels);
        self.filter.require(fits, || {
            let each = if is_single { "channels" } else { "blocks of channels" };
            format!("blocks of 16 filters for {channels} {each} in {groups} groups are needed")
        })?;
        let even = filters.get().is_none_or(|n| n.is_multiple_of(self.groups as usize));
        self.filter.require(even, || format!("blocks divisible by {groups} groups are needed"))?;
        let empty = height == 0 || width == 0;
        self.filter.require(!empty, || "windows of at least one element are needed".into())?;
        check_bias(&self.bias, &self.input, filters)?;
        if let Some(scales) = &self.scales {
            scales.same_dtype(&self.input)?;
            let [images, groups, height, width] = check_blocks(scales)?;
            let one = Dim::from(1);
            let fits = !is_single
                && images.agrees(n)
                && groups.agrees(channels)
                && height.agrees(one)
                && width.agrees(one);
            scales.require(fits, || {
                format!("one pixel for each of {n} images of {channels} blocks is needed")
            })?;
        }
        let [rows, columns] = self.conv.convolved(&self.input, [rows, columns], [height, width])?;
        self.output.set(self.input.dtype, blocks([n, filters, rows, columns]));
        self.residual.as_ref().map_or(Ok(()), |residual| residual.same_as(&self.output))
    }

    fn flops(&self) -> Dim {
        let dims = &self.filter.dims;
        Dim::from(2) * self.output.dims.numel() * dims[1] * dims[2] * dims[3] * dims[4]
    }
}
impl Kernel for BlockedConv2d<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let [filters, share, kernel_rows, kernel_columns, depth, _] = dims(&self.filter)?;
        let [_, _, rows, columns, _] = dims(&self.output)?;
        let x_size = [self.input.dims()[2], self.input.dims()[3]];
        let axes = self.conv.axes()?;
        let [down, across] = [0, 1].map(|i| axes[i].windows([kernel_rows, kernel_columns][i], x_size[i]));
        let each = filters / self.groups as usize;
        let row = columns * CHANNEL_BLOCK;
        with_float!(self.input, T => {
            let (x, filter, bias) = (self.input.slice::<T>()?, self.filter.slice::<T>()?, self.bias.slice::<T>()?);
            let (scales, residual) = (self.scales.slice::<T>()?, self.residual.slice::<T>()?);
            let bounds = self.activation.bounds::<T>(residual.is_some());
            let plane = x_size[0] * x_size[1] * depth;
            let window = kernel_rows * kernel_columns * depth * CHANNEL_BLOCK;
            let of_scaled = self.scratch_bytes(cx.threads()) / size_of::<T>();
            let band = (BAND / (row * PAIR * size_of::<T>()).max(1)).clamp(1, rows.max(1));
            let out = self.output.slice_mut::<T>()?;
            let count = out.len().checked_div(rows * row).unwrap_or(0);
            let out = DividedMat { data: out, cols: rows * row, part: [PAIR, band * row] };
            cx.scratch(of_scaled, |scaled| cx.try_zip_submatrices_mut([out], scaled, |[part, number], [mut out], scaled| {
                let all = part * PAIR..count.min((part + 1) * PAIR);
                let rows = number * band..rows.min((number + 1) * band);
                let mut block = all.start;
                while block < all.end {
                    // Blocks of filters of one image and one group.
                    let (image, first) = (block / filters, block % filters);
                    let (group, in_group) = (first / each, first % each);
                    let n = (each - in_group).min(all.end - block);
                    let first_block = (image * self.groups as usize + group) * share;
                    let x = &x[first_block * plane..];
                    let own = &filter[first * share * window..][..n * share * window];
                    let own = match scales {
                        Some(scales) => {
                            let scales = &scales[first_block * CHANNEL_BLOCK..][..share * CHANNEL_BLOCK];
                            let scaled = &mut scaled[..own.len()];
                            T::vectorised(ScaleFilters { filters: own, scales, window, scaled });
                            &*scaled
                        }
                        None => own,
                    };
                    for vertical in spans(down, x_size[0], rows.clone()) {
                        for horizontal in spans(across, x_size[1], 0..columns) {
                            let [top, left] = [&vertical, &horizontal].map(|span| span.taps.start);
                            let tap = top * kernel_columns + left;
                            let start = (vertical.x * x_size[1] + horizontal.x) * depth;
                            let step = x_size[1] * depth;
                            let products = WindowProducts {
                                x: &x[start.min(x.len())..],
                                filters: &own[(tap * depth * CHANNEL_BLOCK).min(own.len())..],
                                block: share * window,
                                bias: &bias[first * CHANNEL_BLOCK..],
                                add: false,
                                bounds,
                                elements: [
                                    WindowAxis {
                                        count: share,
                                        x: plane,
                                        other: window,
                                    },
                                    WindowAxis {
                                        count: vertical.taps.len(),
                                        x: down.dilation * step,
                                        other: kernel_columns * depth * CHANNEL_BLOCK,
                                    },
                                    WindowAxis {
                                        count: horizontal.taps.len(),
                                        x: across.dilation * depth,
                                        other: depth * CHANNEL_BLOCK,
                                    },
                                ],
                                channels: depth,
                                last_channels: (self.last_channels as usize).min(depth),
                                windows: [
                                    WindowAxis { count: vertical.windows.len(), x: down.stride * step, other: row },
                                    WindowAxis {
                                        count: horizontal.windows.len(),
                                        x: across.stride * depth,
                                        other: CHANNEL_BLOCK,
                                    },
                                ],
                            };
                            let at = (vertical.windows.start - rows.start) * row
                                + horizontal.windows.start * CHANNEL_BLOCK;
                            let written = block - all.start..block - all.start + n;
                            products.write(&mut out, written, at)?;
                        }
                    }
                    block += n;
                }
                for (i, block) in all.enumerate() {
                    let at = block * out.stride() + rows.start * row;
                    let out = out.row(i);
                    let residual = residual.map(|residual| &residual[at..][..out.len()]);
                    self.activation.finish(out, residual);
                }
                Ok(())
            }))
        })
    }

    fn scratch_bytes(&self, workers: usize) -> usize {
        let filters: usize = self.filter.dims()[1..].iter().product();
        let scaled = if self.scales.is_some() { PAIR.saturating_mul(filters) } else { 0 };
        workers.saturating_mul(scaled).saturating_mul(self.filter.dtype().size())
    }
}

/// Multiplies blocks of filters by the scales of an image.
struct ScaleFilters<'a, T> {
    filters: &'a [T],
    scales: &'a [T],
    /// Elements of the filters for a block of channels.
    window: usize,
    scaled: &'a mut [T],
}
impl<T: KernelFloat> VectorLoops<T> for ScaleFilters<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<F: LaneOf<T>>(self) {
        const TAP: usize = CHANNEL_BLOCK * CHANNEL_BLOCK;
        let ScaleFilters { filters, scales, window, scaled } = self;
        let block = (scales.len() / CHANNEL_BLOCK * window).max(1);
        for (scaled, filters) in scaled.chunks_exact_mut(block).zip(filters.chunks_exact(block)) {
            let windows = scaled.chunks_exact_mut(window).zip(filters.chunks_exact(window));
            for ((scaled, filters), scales) in windows.zip(scales.chunks_exact(CHANNEL_BLOCK)) {
                for (scaled, filters) in scaled.chunks_exact_mut(TAP).zip(filters.chunks_exact(TAP)) {
                    let lanes =
                        scaled.chunks_exact_mut(CHANNEL_BLOCK).zip(filters.chunks_exact(CHANNEL_BLOCK));
                    for ((scaled, filters), scale) in lanes.zip(scales) {
                        // Where the compiler sees all scales, it gathers one lane of many channels, which is slow.
                        let scale = F::new(black_box(*scale));
                        map_lanes([filters], [scaled], |[filter]: [F; 1], _: [F; 1]| [filter * scale]);
                    }
                }
            }
        }
    }
}
impl Composition for BlockedConv2d<Expr> {
    fn compose(&mut self) {
        let (input, filter) = (&self.scaled_input(), &self.multiplied());
        let x = if input.dims().len() == 4 { input.clone() } else { channels_first(input) };
        let dims = |axis| filter.dim(axis);
        let planes = filter.transpose(&[0, 5, 1, 4, 2, 3]);
        let filter = planes.reshape_to(&[dims(0) * dims(5), dims(1) * dims(4), dims(2), dims(3)]);
        let conv = self.conv.plain().groups(self.groups);
        let y = emit(Conv2dOp { input: (&x).into(), filter: (&filter).into(), output: New, conv }).output;
        let y = in_blocks(&(y + self.bias.unsqueeze(&[1, 2])));
        self.output = finished(&self.activation, y, self.residual.as_ref());
    }
}

impl BlockedConv2d<Expr> {
    fn scaled_input(&self) -> Expr {
        self.scales.as_ref().map_or_else(|| self.input.clone(), |scales| &self.input * scales)
    }

    /// The filters, with zeros for the channels that are not multiplied.
    fn multiplied(&self) -> Expr {
        let (filter, count) = (&self.filter, DimExpr::from(i64::from(self.last_channels)));
        if self.last_channels as usize >= CHANNEL_BLOCK || self.input.dims().len() == 4 {
            return filter.clone();
        }
        let last = filter.dim(1) - 1;
        let others = filter.slice_to(1, &0.into(), &last);
        let own = filter.slice_to(1, &last, &filter.dim(1)).slice_to(4, &0.into(), &count);
        let none = || [0, 0].map(DimExpr::from);
        let zeros = [0.into(), DimExpr::from(CHANNEL_BLOCK as i64) - count];
        let own = own.pad_to(&[none(), none(), none(), none(), zeros, none()], 0.0);
        concat(&[&others, &own], 1)
    }
}

/// The function of the sum of results and `residual`.
pub(super) fn finished(activation: &ActivationAttrs, y: Expr, residual: Option<&Expr>) -> Expr {
    activation.of(&residual.map_or(y.clone(), |residual| y + residual))
}
autobwd::samples!(
    BlockedConv2d,
    [
        conv([2, 1, 4, 5, 16], [3, 1, 3, 2, 16, 16]),
        BlockedConv2d {
            conv: BlockedConvAttrs::default().paddings([1, 1]),
            ..conv([1, 2, 3, 4, 16], [1, 2, 3, 3, 16, 16])
        },
        // The width is the largest dimension, so that it is enlarged where samples are.
        conv([1, 1, 2, 18, 16], [1, 1, 1, 1, 16, 16]),
        // Rows of windows of more than one tile.
        BlockedConv2d {
            conv: BlockedConvAttrs::default().paddings([1, 0, 2, 0]).strides([2, 1]),
            ..conv([1, 1, 3, 18, 16], [2, 1, 2, 3, 16, 16])
        },
        BlockedConv2d {
            conv: BlockedConvAttrs::default().dilations([2, 3]).strides([1, 2]).paddings([3, 0]),
            ..conv([1, 1, 4, 7, 16], [1, 1, 2, 3, 16, 16])
        },
        conv([2, 3, 7, 5], [2, 3, 3, 2, 1, 16]),
        BlockedConv2d {
            conv: BlockedConvAttrs::default().paddings([1, 2]).strides([2, 2]),
            ..conv([1, 3, 5, 6], [1, 3, 4, 3, 1, 16])
        },
        BlockedConv2d { groups: 2, ..conv([1, 4, 3, 2, 16], [6, 2, 1, 1, 16, 16]) },
        BlockedConv2d {
            residual: Some(uniform([2, 1, 3, 4, 16])),
            activation: ActivationAttrs::default().fuse_activation(Activation::Swish).fuse_beta(1.5_f32),
            ..conv([2, 1, 4, 4, 16], [1, 1, 2, 1, 16, 16])
        },
        BlockedConv2d { last_channels: 5, ..conv([1, 2, 3, 2, 16], [1, 2, 2, 1, 16, 16]) },
        activated(Activation::Relu, 0.0, 0.0),
        activated(Activation::Relu6, 0.5, 0.0),
        activated(Activation::LeakyRelu, 0.25, 0.0),
        activated(Activation::HardSigmoid, 0.25, 0.5),
        activated(Activation::HardSwish, 0.0, 0.0),
        activated(Activation::Sigmoid, 0.0, 0.0),
        conv([0, 1, 4, 5, 16], [3, 1, 3, 2, 16, 16]),
        conv([2, 0, 4, 5, 16], [3, 0, 3, 2, 16, 16]),
        conv([2, 1, 4, 5, 16], [0, 1, 3, 2, 16, 16]),
        BlockedConv2d {
            scales: Some(uniform([2, 3, 1, 1, 16])),
            groups: 3,
            ..conv([2, 3, 1, 4, 16], [3, 1, 1, 2, 16, 16])
        },
        BlockedConv2d {
            scales: Some(uniform([1, 2, 1, 1, 16])),
            conv: BlockedConvAttrs::default().paddings([1, 0]),
            ..conv([1, 2, 3, 1, 16], [1, 2, 2, 1, 16, 16])
        },
        conv([2, 1, 4, 5, 16], [3, 2, 3, 2, 16, 16])
            .fails("`Filter`: blocks of 16 filters for 1 blocks of channels in 1 groups are needed"),
        conv([2, 3, 4, 5], [3, 3, 3, 2, 16, 16])
            .fails("`Filter`: blocks of 16 filters for 3 channels in 1 groups are needed"),
        conv([2, 3, 4], [3, 1, 3, 2, 16, 16]).fails("`Input`: 5 dimensions are needed"),
        BlockedConv2d { groups: 2, ..conv([1, 4, 3, 2, 16], [3, 2, 1, 1, 16, 16]) }
            .fails("`Filter`: blocks divisible by 2 groups are needed"),
        BlockedConv2d { bias: uniform([3]), ..conv([1, 4, 3, 2, 16], [3, 4, 1, 1, 16, 16]) }
            .fails("`Bias`: a number for each of 48 channels is needed"),
        BlockedConv2d {
            residual: Some(uniform([2, 3, 2, 3, 16])),
            ..conv([2, 1, 4, 5, 16], [3, 1, 3, 2, 16, 16])
        }
        .fails("`Residual`"),
        BlockedConv2d {
            scales: Some(uniform([2, 3, 1, 1, 16])),
            ..conv([2, 1, 4, 5, 16], [3, 1, 3, 2, 16, 16])
        }
        .fails("`Scales`: one pixel for each of 2 images of 1 blocks is needed"),
        BlockedConv2d { scales: Some(uniform([2, 3, 1, 1, 16])), ..conv([2, 3, 4, 5], [3, 3, 3, 2, 1, 16]) }
            .fails("`Scales`: one pixel for each of 2 images of 3 blocks is needed"),
        conv([2, 1, 4, 5, 16], [3, 1, 5, 2, 16, 16])
            .fails("`Input`: at least 5 rows and columns are needed for a window"),
        BlockedConv2d {
            input: integers_below(3, [2, 1, 4, 5, 16]),
            ..conv([2, 1, 4, 5, 16], [3, 1, 3, 2, 16, 16])
        }
        .fails("`Input`: floating point numbers are needed"),
    ]
);

fn conv<const N: usize>(input: [usize; N], filter: [usize; 6]) -> BlockedConv2d<Draw> {
    BlockedConv2d {
        input: uniform(input),
        filter: uniform(filter),
        bias: uniform([filter[0] * CHANNEL_BLOCK]),
        scales: None,
        residual: None,
        output: out(),
        conv: BlockedConvAttrs::default(),
        groups: 1,
        last_channels: 16,
        activation: ActivationAttrs::default(),
    }
}

fn activated(function: Activation, alpha: f32, beta: f32) -> BlockedConv2d<Draw> {
    let activation = ActivationAttrs { fuse_activation: function, fuse_alpha: alpha, fuse_beta: beta };
    BlockedConv2d { activation, ..conv([1, 3, 2, 4], [1, 3, 2, 1, 1, 16]) }
}
