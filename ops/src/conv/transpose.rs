//! Transposed convolution.

use autobwd::{
    Buf, Composition, Cx, Dims, Error, Expr, GradCx, GradRule, Infer, Kernel, Meta, Multilinear, Result, Var,
    check::*, op::with_float, register_op, tensor::Dim,
};

use super::{
    ConvAttrs, ConvPart,
    gradients::{PaddedConvolution, channels_first, fail, in_layout},
    nhwc, plain, same, valid,
};
use crate::{
    kernel_helpers::{KernelFloat, PART, pieces},
    norm::DataLayout,
    reduce::{ReduceAttrs, ReduceSum},
    windows::{AxisWindows, optional_counts},
};

/// Transposed convolution, the gradient of `conv2d` with respect to its images:
/// `output[m, y * stride + i * dilation - padding, …] = Σ input[c, y, x] * filter[c, m, i, j] + bias[m]`, summed over
/// the channels `c` of a group and all contributions to the pixel.
#[register_op(grad = Conv2dTransposeRule, infallible, primitive)]
pub struct Conv2dTransposeOp<V = Var> {
    /// Images, in the order that `data_format` says.
    #[input]
    pub input: V,
    /// Filters, `[channels, channels of output / groups, height, width]`; each of `groups` equal parts of the input
    /// channels makes one part of the output channels.
    #[input]
    pub filter: V,
    /// Added to each channel of the output; may be absent.
    #[input]
    pub bias: Option<V>,
    /// One image for each input image.
    #[output]
    pub output: V,
    /// Position of the windows; padding refers to the output.
    #[attrs]
    pub conv: ConvAttrs,
    /// Extra rows and columns at the end of the output, fewer than stride or dilation; empty means 0.
    #[attr(default = [])]
    pub output_padding: Vec<i32>,
    /// Height and width of the output, where strides leave a choice; empty means the smallest.
    #[attr(default = [])]
    pub output_size: Vec<i32>,
}
impl Infer for Conv2dTransposeOp<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.output.set(self.input.dtype, self.transposed()?);
        let (_, channels, _) = self.conv.data_format.split(self.output.unpack()?);
        self.bias.iter().try_for_each(|bias| {
            bias.same_dtype(&self.input)?;
            bias.require(bias.dims.agrees(&[channels]), || {
                format!("[{channels}] is needed, one for each channel")
            })
        })
    }
}
impl Conv2dTransposeOp<Meta> {
    /// The output shape; where strides leave a choice, `output_size` or `output_padding` selects one.
    fn transposed(&self) -> Result<Dims> {
        let Conv2dTransposeOp { input, filter, conv, output_size, output_padding, .. } = self;
        let (images, channels, size, [filters, share, kernel @ ..]) = conv.check(input, filter)?;
        filter.require(filters.agrees(channels), || format!("filters for {channels} channels are needed"))?;
        let lengths = TransposedLengths::new(conv.axes()?, output_size, output_padding)?;
        let length = |i: usize| lengths.of(i, input, kernel[i], size[i]);
        let size = [length(0)?, length(1)?];
        Ok(conv.data_format.join(images, share * i64::from(conv.groups), size).into_iter().collect())
    }
}

/// The lengths of the output of a transposed convolution along its axes.
pub(super) struct TransposedLengths<const N: usize> {
    axes: [AxisWindows; N],
    sizes: Option<[usize; N]>,
    paddings: Option<[usize; N]>,
}

impl<const N: usize> TransposedLengths<N> {
    /// The lengths of `sizes`, or the smallest ones with `paddings`; either may be empty.
    pub(super) fn new(axes: [AxisWindows; N], sizes: &[i32], paddings: &[i32]) -> Result<Self> {
        let sizes = optional_counts("output_size", sizes, 1)?;
        Ok(TransposedLengths { axes, sizes, paddings: optional_counts("output_padding", paddings, 0)? })
    }

    /// The length along axis `i`, where filters have `kernel` elements and the input has `size`.
    pub(super) fn of(&self, i: usize, input: &Meta, kernel: Dim, size: Dim) -> Result<Dim> {
        let (Some(kernel), Some(size)) = (kernel.get(), size.get()) else {
            return Ok(self.sizes.map_or(Dim::UNKNOWN, |sizes| sizes[i].into()));
        };
        let windows = self.axes[i].windows(kernel, size);
        let needed = || input.wrong("more rows and columns than the paddings remove are needed");
        let least = windows.covered(size).ok_or_else(needed)?;
        if let Some(size) = self.sizes.map(|sizes| sizes[i]) {
            let possible = least..least.saturating_add(windows.stride);
            let refuse = || Error::attr("output_size", format!("{size} is not within {possible:?}"));
            return possible.contains(&size).then(|| size.into()).ok_or_else(refuse);
        }
        let (more, limit) = (self.paddings.map_or(0, |more| more[i]), windows.stride.max(windows.dilation));
        let text = || format!("{more} is not below stride or dilation, {limit}");
        let refuse = || Error::attr("output_padding", text());
        (more < limit).then(|| least.saturating_add(more).into()).ok_or_else(refuse)
    }
}

impl Kernel for Conv2dTransposeOp<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let kernel = self.conv.kernel([&self.output, &self.filter, &self.input, &self.input])?;
        with_float!(self.input, T => {
            let output = self.output.slice_mut::<T>()?;
            kernel.data_grad(cx, self.filter.slice()?, self.input.slice()?, output)?;
            if let Some(bias) = &self.bias {
                add_bias(cx, self.conv.data_format, kernel.x.pixels(), bias.slice()?, output);
            }
            Ok(())
        })
    }

    fn scratch_bytes(&self, workers: usize) -> usize {
        let slots = [&self.output, &self.filter, &self.input, &self.input];
        self.conv.scratch_bytes(slots, [ConvPart::DataGrad], workers)
    }
}
autobwd::samples!(
    Conv2dTransposeOp,
    [
        transpose([2, 3, 5, 4], [3, 4, 2, 1], plain()),
        transpose([2, 3, 4, 1], [3, 5, 2, 4], plain().strides([2, 3]).paddings([1, 0])),
        biased(5, transpose([2, 4, 1, 3], [3, 5, 2, 4], nhwc().paddings([0, 1, 2, 0]))),
        biased(6, transpose([1, 4, 3, 2], [4, 3, 1, 2], plain().groups(2))),
        biased(6, transpose([1, 3, 2, 4], [4, 3, 1, 2], nhwc().groups(2))),
        transpose([2, 3, 5, 4], [3, 1, 2, 4], plain().groups(3)),
        transpose([1, 6, 3, 2], [6, 1, 3, 2], plain().groups(2)),
        transpose([1, 2, 3, 18], [2, 1, 2, 3], plain().groups(2)),
        Conv2dTransposeOp {
            output_size: vec![9, 8],
            ..transpose([1, 2, 3, 4], [2, 3, 1, 1], plain().strides([3, 2]))
        },
        Conv2dTransposeOp {
            output_padding: vec![1, 2],
            ..transpose([1, 2, 3, 4], [2, 3, 4, 2], plain().strides([3, 1]).dilations([1, 3]))
        },
        transpose([1, 2, 5, 4], [2, 4, 3, 1], same().strides([2, 1])),
        transpose([1, 2, 3, 4], [2, 4, 3, 1], valid().paddings([7, 7]).dilations([2, 1])),
        // 1 × 1 windows.
        transpose([3, 4, 5, 2], [4, 6, 1, 1], plain()),
        transpose([3, 5, 2, 4], [4, 6, 1, 1], nhwc()),
        biased(4, transpose([0, 3, 5, 2], [3, 4, 2, 1], plain())),
        biased(4, transpose([2, 0, 5, 3], [0, 4, 2, 1], plain())),
        biased(0, transpose([2, 3, 5, 4], [3, 0, 2, 1], plain())),
        transpose([2, 3, 5, 4], [4, 3, 2, 1], plain()).fails("`Filter`: filters for 3 channels are needed"),
        transpose([2, 3, 5, 4], [3, 4, 2, 1], plain().groups(2))
            .fails("`Filter`: a number of filters divisible by 2 groups is needed"),
        biased(3, transpose([2, 3, 5, 4], [3, 4, 2, 1], plain()))
            .fails("`Bias`: [4] is needed, one for each channel"),
        transpose([2, 3, 5, 4], [3, 4, 2, 1], plain().paddings([3, 0]))
            .fails("`Input`: more rows and columns than the paddings remove are needed"),
        Conv2dTransposeOp { output_size: vec![6, 5], ..transpose([2, 3, 5, 4], [3, 4, 2, 1], plain()) }
            .fails("attribute `output_size`: 5 is not within 4..5"),
        Conv2dTransposeOp { output_padding: vec![1, 0], ..transpose([2, 3, 5, 4], [3, 4, 2, 1], plain()) }
            .fails("attribute `output_padding`: 1 is not below stride or dilation, 1"),
        Conv2dTransposeOp { output_size: vec![6], ..transpose([2, 3, 5, 4], [3, 4, 2, 1], plain()) }
            .fails("attribute `output_size`: 2 numbers of at least 1 are needed, not [6]"),
    ]
);

fn transpose(input: [usize; 4], filter: [usize; 4], conv: ConvAttrs) -> Conv2dTransposeOp<Draw> {
    let (input, filter, output) = (uniform(input), uniform(filter), out());
    Conv2dTransposeOp { input, filter, bias: None, output, conv, output_padding: vec![], output_size: vec![] }
}

fn biased(channels: usize, row: Conv2dTransposeOp<Draw>) -> Conv2dTransposeOp<Draw> {
    Conv2dTransposeOp { bias: Some(uniform([channels])), ..row }
}

/// Adds to every channel its bias.
fn add_bias<T: KernelFloat>(cx: &Cx, format: DataLayout, pixels: usize, bias: &[T], images: &mut [T]) {
    cx.chunks_mut(images, PART, |part, images| match format {
        DataLayout::Nchw => pieces(images, part * PART, pixels, usize::MAX, |plane, _, piece| {
            let bias = bias[plane % bias.len()];
            piece.iter_mut().for_each(|x| *x += bias);
        }),
        DataLayout::Nhwc => pieces(images, part * PART, bias.len(), usize::MAX, |_, channel, piece| {
            piece.iter_mut().zip(&bias[channel..]).for_each(|(x, bias)| *x += *bias);
        }),
    });
}

/// One gradient operator, and a sum for the bias: `dbias = Σ doutput` over images and pixels.
#[derive(Debug)]
pub struct Conv2dTransposeRule;
impl GradRule<Conv2dTransposeOp> for Conv2dTransposeRule {
    fn emit(fwd: &Conv2dTransposeOp, g: &mut GradCx<'_>) {
        g.push_gradient::<_, Conv2dTransposeGrad>(fwd);
        if let Some(dbias) = fwd.bias.and_then(|bias| g.wanted(bias)) {
            let reduce = ReduceAttrs::over(fwd.conv.data_format.but_channels(4));
            g.push(ReduceSum { x: g.grad(fwd.output), out: dbias, reduce });
        }
    }
}

/// `dinput` = `conv2d` of `doutput` with `filter`; `dfilter` = the filter gradient of that `conv2d`, with `input` as
/// gradient of its output.
#[register_op(grad_of = Conv2dTransposeOp, grad = Multilinear, inferred, infallible, halves)]
pub struct Conv2dTransposeGrad<V = Var> {
    pub input: V,
    pub filter: V,
    #[input(shape_only)]
    pub bias: Option<V>,
    pub doutput: V,
    #[output]
    pub dinput: Option<V>,
    #[output]
    pub dfilter: Option<V>,
    #[attrs]
    pub conv: ConvAttrs,
    pub output_padding: Vec<i32>,
    pub output_size: Vec<i32>,
}
impl Kernel for Conv2dTransposeGrad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let slots = [&self.doutput, &self.filter, &self.input, &self.input];
        self.conv.gradients(cx, slots, [&mut None, &mut self.dinput, &mut self.dfilter])
    }

    fn scratch_bytes(&self, workers: usize) -> usize {
        let slots = [&self.doutput, &self.filter, &self.input, &self.input];
        let input = self.dinput.as_ref().map(|_| ConvPart::Forward);
        let filter = self.dfilter.as_ref().map(|_| ConvPart::FilterGrad);
        self.conv.scratch_bytes(slots, input.into_iter().chain(filter), workers)
    }
}
impl Composition for Conv2dTransposeGrad<Expr> {
    fn compose(&mut self) {
        let (filter, format) = (&self.filter, self.conv.data_format);
        let [x, y] = [&self.doutput, &self.input].map(|images| channels_first(images, format));
        let axes = match self.conv.axes() {
            Ok(axes) => axes,
            Err(error) => return fail(filter, error, [&mut self.dinput, &mut self.dfilter]),
        };
        let conv = PaddedConvolution::new(&axes, self.conv.groups, filter, [&x, &y]);
        if let Some(dinput) = &mut self.dinput {
            *dinput = in_layout(&conv.forward(&x, filter, &y), format);
        }
        if let Some(dfilter) = &mut self.dfilter {
            *dfilter = conv.filter_gradient(&x, &y, filter);
        }
    }
}
