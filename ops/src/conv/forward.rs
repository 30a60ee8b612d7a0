//! Convolutions.

use autobwd::{
    Buf, Cx, GradCx, GradRule, Infer, Kernel, Meta, Result, Var, check::*, register_op, with_float,
};

use super::{Attrs, attrs, same_shape, with_attrs};
use crate::{common::grad_grad_of_product, image::PaddingAlgorithm, norm::DataLayout};

/// Shape rules, kernels and the gradient of the gradient of an operator whose shape rule begins with `$check`.
macro_rules! convolution {
    ($op:ident, $grad:ident, $grad_grad:ident, $check:expr) => {
        impl Infer for $op<Meta> {
            fn infer(&mut self) -> Result<()> {
                let dims = attrs!(self).convolved(&self.input, &self.filter)?;
                let check: fn(&$op<Meta>) -> Result<()> = $check;
                check(self)?;
                self.output.set(self.input.dtype, dims);
                Ok(())
            }
        }
        impl Kernel for $op<Buf<'_>> {
            fn run(&mut self, cx: &Cx) -> Result<()> {
                let kernel = attrs!(self).kernel(&self.input, &self.filter, &self.output, &self.input)?;
                with_float!(self.input, T => {
                    kernel.forward::<T>(cx, self.input.slice()?, self.filter.slice()?, self.output.slice_mut()?)
                })
            }

            fn scratch_bytes(&self, workers: usize) -> usize {
                let kernel = attrs!(self).kernel(&self.input, &self.filter, &self.output, &self.input);
                kernel.map_or(0, |kernel| kernel.scratch(workers) * self.input.dtype().size())
            }
        }

        impl Infer for $grad<Meta> {
            fn infer(&mut self) -> Result<()> {
                let dims = attrs!(self).convolved(&self.input, &self.filter)?;
                same_shape(&self.dout, &self.input, &dims)?;
                self.dinput.iter_mut().for_each(|dinput| dinput.like(&self.input));
                self.dfilter.iter_mut().for_each(|dfilter| dfilter.like(&self.filter));
                Ok(())
            }
        }
        impl Kernel for $grad<Buf<'_>> {
            fn run(&mut self, cx: &Cx) -> Result<()> {
                let kernel = attrs!(self).kernel(&self.input, &self.filter, &self.dout, &self.input)?;
                with_float!(self.dout, T => {
                    let dout = self.dout.slice::<T>()?;
                    if let Some(dinput) = &mut self.dinput {
                        kernel.data_grad(cx, self.filter.slice()?, dout, dinput.slice_mut()?)?;
                    }
                    if let Some(dfilter) = &mut self.dfilter {
                        kernel.filter_grad(cx, self.input.slice()?, dout, dfilter.slice_mut()?)?;
                    }
                    Ok(())
                })
            }

            fn scratch_bytes(&self, workers: usize) -> usize {
                let kernel = attrs!(self).kernel(&self.input, &self.filter, &self.dout, &self.input);
                let scratch = kernel.map_or(0, |kernel| kernel.grad_scratch(self.dfilter.is_some(), workers));
                scratch * self.dout.dtype().size()
            }
        }

        impl GradRule<$grad> for $grad_grad {
            fn emit(fwd: &$grad, g: &mut GradCx<'_>) {
                let $grad { input, filter, dout, .. } = *fwd;
                let convolve = |input, filter, output| with_attrs!($op { input, filter, output }, fwd);
                let grad = |input, filter, dinput, dfilter| {
                    with_attrs!($grad { input, filter, dout, dinput, dfilter }, fwd)
                };
                grad_grad_of_product(g, [input, filter, dout], [fwd.dinput, fwd.dfilter], convolve, grad);
            }
        }
    };
}

/// Convolution of images: `output[m, y, x] = Σ input[c, y * stride + i * dilation - padding, …] * filter[m, c, i, j]`,
/// summed over the channels `c` of a group and the elements `i`, `j` of a filter.
///
/// What is over the edges counts as 0.
#[register_op(grad = Conv2dGrad)]
pub struct Conv2d<V = Var> {
    /// Images, in the order that `data_format` says.
    #[input]
    pub input: V,
    /// Filters, `[filters, channels / groups, height, width]`; the first of `groups` equal shares of them are for the
    /// first share of the channels, and so on.
    #[input]
    pub filter: V,
    /// An image for each, with as many channels as there are filters.
    #[output]
    pub output: V,
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
convolution!(Conv2d, Conv2dGrad, Conv2dGradGrad, |_| Ok(()));
autobwd::samples!(
    Conv2d,
    [
        conv2d(uniform([2, 3, 5, 4]), uniform([4, 3, 2, 1])),
        Conv2d { strides: vec![2, 1], ..conv2d(uniform([2, 3, 6, 5]), uniform([4, 3, 1, 2])) },
        Conv2d { strides: vec![1, 2], ..nhwc(conv2d(uniform([2, 6, 5, 3]), uniform([4, 3, 1, 2]))) },
        Conv2d { paddings: vec![1, 2], ..conv2d(uniform([1, 2, 4, 3]), uniform([5, 2, 3, 4])) },
        Conv2d { paddings: vec![0, 1, 2, 3], ..conv2d(uniform([1, 2, 3, 4]), uniform([4, 2, 3, 1])) },
        Conv2d { paddings: vec![0, 1, 2, 0], ..nhwc(conv2d(uniform([1, 3, 4, 2]), uniform([4, 2, 3, 1]))) },
        // Some windows lie beside the image.
        Conv2d { paddings: vec![3, 2], ..conv2d(uniform([1, 3, 2, 4]), uniform([5, 3, 2, 1])) },
        Conv2d { dilations: vec![2, 3], ..conv2d(uniform([1, 2, 5, 7]), uniform([4, 2, 3, 1])) },
        Conv2d {
            dilations: vec![1, 2],
            strides: vec![3, 2],
            paddings: vec![1, 2],
            ..nhwc(conv2d(uniform([1, 6, 7, 2]), uniform([5, 2, 3, 4])))
        },
        Conv2d { groups: 2, ..conv2d(uniform([3, 4, 5, 2]), uniform([6, 2, 3, 1])) },
        Conv2d { groups: 2, ..nhwc(conv2d(uniform([3, 5, 2, 4]), uniform([6, 2, 3, 1]))) },
        Conv2d { groups: 3, ..conv2d(uniform([2, 3, 5, 4]), uniform([6, 1, 3, 2])) },
        Conv2d { groups: 3, ..nhwc(conv2d(uniform([2, 5, 4, 3]), uniform([12, 1, 3, 2]))) },
        // Channels that are worth products by the rows of windows.
        conv2d(uniform([2, 32, 4, 3]), uniform([3, 32, 3, 2])),
        Conv2d {
            paddings: vec![2, 0, 1, 2],
            dilations: vec![2, 1],
            groups: 2,
            ..conv2d(uniform([1, 64, 3, 3]), uniform([2, 32, 2, 2]))
        },
        Conv2d {
            strides: vec![1, 2],
            paddings: vec![1, 1],
            groups: 2,
            ..nhwc(conv2d(uniform([1, 4, 3, 64]), uniform([2, 32, 2, 2])))
        },
        // Windows of one element.
        conv2d(uniform([3, 4, 5, 2]), uniform([6, 4, 1, 1])),
        Conv2d { groups: 2, ..nhwc(conv2d(uniform([3, 5, 2, 4]), uniform([6, 2, 1, 1]))) },
        Conv2d {
            padding_algorithm: PaddingAlgorithm::Same,
            strides: vec![2, 3],
            paddings: vec![7, 7],
            ..conv2d(uniform([1, 2, 5, 6]), uniform([3, 2, 4, 5]))
        },
        Conv2d {
            padding_algorithm: PaddingAlgorithm::Same,
            dilations: vec![2, 2],
            ..conv2d(uniform([1, 2, 5, 4]), uniform([5, 2, 3, 4]))
        },
        Conv2d {
            padding_algorithm: PaddingAlgorithm::Valid,
            paddings: vec![7, 7],
            ..conv2d(uniform([1, 2, 5, 4]), uniform([4, 2, 3, 1]))
        },
        conv2d(uniform([0, 3, 5, 4]), uniform([4, 3, 2, 1])),
        nhwc(conv2d(uniform([0, 5, 4, 3]), uniform([4, 3, 2, 1]))),
        conv2d(uniform([2, 0, 5, 4]), uniform([4, 0, 2, 1])),
        conv2d(uniform([2, 3, 5, 4]), uniform([0, 3, 2, 1])),
        Conv2d { paddings: vec![1, 2], ..conv2d(uniform([2, 3, 0, 4]), uniform([4, 3, 2, 1])) },
        Sample::fails(conv2d(uniform([2, 3, 5]), uniform([4, 3, 2, 1])), "`Input`: 4 dimensions are needed"),
        Sample::fails(conv2d(uniform([2, 3, 5, 4]), uniform([4, 3])), "`Filter`: 4 dimensions are needed"),
        Sample::fails(
            conv2d(uniform([2, 3, 5, 4]), integers_below(3, [4, 3, 2, 1])),
            "`Filter`: dtype int64 does not match",
        ),
        Sample::fails(
            conv2d(integers_below(3, [2, 3, 5, 4]), integers_below(3, [4, 3, 2, 1])),
            "`Input`: floating point numbers are needed",
        ),
        Sample::fails(
            conv2d(uniform([2, 3, 5, 4]), uniform([4, 2, 3, 1])),
            "`Filter`: filters of 3 channels in 1 groups are needed",
        ),
        Sample::fails(
            Conv2d { groups: 2, ..conv2d(uniform([2, 4, 5, 3]), uniform([5, 2, 3, 1])) },
            "`Filter`: filters that make 2 groups are needed",
        ),
        Sample::fails(
            conv2d(uniform([2, 3, 5, 4]), uniform([4, 3, 0, 1])),
            "`Filter`: windows of at least one element are needed",
        ),
        Sample::fails(
            Conv2d { paddings: vec![1, 0], ..conv2d(uniform([1, 3, 4, 2]), uniform([4, 3, 7, 1])) },
            "`Input`: at least 5 rows and columns are needed",
        ),
        Sample::fails(
            Conv2d { strides: vec![1], ..conv2d(uniform([2, 3, 5, 4]), uniform([4, 3, 2, 1])) },
            "attribute `strides`: 2 numbers of at least 1 are needed, not [1]",
        ),
        Sample::fails(
            Conv2d { dilations: vec![1, 0], ..conv2d(uniform([2, 3, 5, 4]), uniform([4, 3, 2, 1])) },
            "attribute `dilations`: 2 numbers of at least 1 are needed, not [1, 0]",
        ),
        Sample::fails(
            Conv2d { paddings: vec![1, 2, 3], ..conv2d(uniform([2, 3, 5, 4]), uniform([4, 3, 2, 1])) },
            "attribute `paddings`: 2 or 4 numbers of at least 0 are needed, not [1, 2, 3]",
        ),
        Sample::fails(
            Conv2d { paddings: vec![0, -1], ..conv2d(uniform([2, 3, 5, 4]), uniform([4, 3, 2, 1])) },
            "attribute `paddings`: 2 or 4 numbers of at least 0 are needed, not [0, -1]",
        ),
        Sample::fails(
            Conv2d { groups: 0, ..conv2d(uniform([2, 3, 5, 4]), uniform([4, 3, 2, 1])) },
            "attribute `groups`: must be at least 1",
        ),
    ]
);

fn conv2d(input: Draw, filter: Draw) -> Conv2d<Draw> {
    Conv2d {
        input,
        filter,
        output: out(),
        strides: vec![1, 1],
        paddings: vec![0, 0],
        padding_algorithm: PaddingAlgorithm::Explicit,
        dilations: vec![1, 1],
        groups: 1,
        data_format: DataLayout::Nchw,
    }
}

fn nhwc(conv2d: Conv2d<Draw>) -> Conv2d<Draw> {
    Conv2d { data_format: DataLayout::Nhwc, ..conv2d }
}

/// `dinput[c, y * stride + i * dilation - padding, …] = Σ dout[m, y, x] * filter[m, c, i, j]`,
/// `dfilter[m, c, i, j] = Σ dout[m, y, x] * input[c, y * stride + i * dilation - padding, …]`, also summed over images.
#[register_op(grad = Conv2dGradGrad)]
pub struct Conv2dGrad<V = Var> {
    /// Images.
    #[input]
    pub input: V,
    /// Filters.
    #[input]
    pub filter: V,
    #[input("Output@GRAD")]
    pub dout: V,
    #[output("Input@GRAD")]
    pub dinput: Option<V>,
    #[output("Filter@GRAD")]
    pub dfilter: Option<V>,
    /// As in `conv2d`.
    #[attr(default = [1, 1])]
    pub strides: Vec<i32>,
    /// As in `conv2d`.
    #[attr(default = [0, 0])]
    pub paddings: Vec<i32>,
    /// As in `conv2d`.
    #[attr(default = PaddingAlgorithm::Explicit)]
    pub padding_algorithm: PaddingAlgorithm,
    /// As in `conv2d`.
    #[attr(default = [1, 1])]
    pub dilations: Vec<i32>,
    /// As in `conv2d`.
    #[attr(default = 1, min = 1)]
    pub groups: i32,
    /// As in `conv2d`.
    #[attr(default = DataLayout::Nchw)]
    pub data_format: DataLayout,
}

/// `ddout` = the convolutions of `ddinput` with `filter` and of `input` with `ddfilter`; `dinput` and `dfilter` are the
/// gradients of these: a convolution is linear in each of both.
pub struct Conv2dGradGrad;

/// Convolution of every channel with filters of its own: `conv2d` with as many groups as channels.
#[register_op(grad = DepthwiseConv2dGrad)]
pub struct DepthwiseConv2d<V = Var> {
    /// Images, in the order that `data_format` says.
    #[input]
    pub input: V,
    /// Filters, `[filters, 1, height, width]`, as many for each channel.
    #[input]
    pub filter: V,
    /// An image for each, with as many channels as there are filters.
    #[output]
    pub output: V,
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
    /// As many as there are channels.
    #[attr(default = 1, min = 1)]
    pub groups: i32,
    /// Order of the dimensions of images.
    #[attr(default = DataLayout::Nchw)]
    pub data_format: DataLayout,
}
convolution!(DepthwiseConv2d, DepthwiseConv2dGrad, DepthwiseConv2dGradGrad, |op| {
    let [_, channels, ..] = op.filter.unpack::<4>()?;
    op.filter.require(channels.agrees(1.into()), || {
        "as many groups as channels, thus filters of one channel, are needed".into()
    })
});
autobwd::samples!(
    DepthwiseConv2d,
    [
        depthwise(uniform([2, 3, 5, 4]), uniform([3, 1, 2, 4]), 3),
        depthwise(uniform([2, 3, 4, 5]), uniform([6, 1, 3, 2]), 3),
        // As many filters a channel as are worth products.
        depthwise(uniform([3, 2, 4, 5]), uniform([10, 1, 3, 2]), 2),
        DepthwiseConv2d {
            data_format: DataLayout::Nhwc,
            ..depthwise(uniform([2, 5, 4, 3]), uniform([3, 1, 2, 4]), 3)
        },
        DepthwiseConv2d {
            data_format: DataLayout::Nhwc,
            strides: vec![2, 1],
            paddings: vec![1, 2],
            ..depthwise(uniform([1, 5, 4, 2]), uniform([6, 1, 3, 2]), 2)
        },
        DepthwiseConv2d {
            strides: vec![2, 3],
            paddings: vec![0, 1, 2, 3],
            dilations: vec![2, 1],
            ..depthwise(uniform([1, 3, 6, 5]), uniform([6, 1, 2, 4]), 3)
        },
        DepthwiseConv2d {
            padding_algorithm: PaddingAlgorithm::Same,
            ..depthwise(uniform([2, 3, 5, 11]), uniform([3, 1, 2, 9]), 3)
        },
        // Rows of more than one step of a loop.
        depthwise(uniform([1, 2, 3, 21]), uniform([2, 1, 3, 4]), 2),
        depthwise(uniform([0, 3, 5, 4]), uniform([3, 1, 2, 4]), 3),
        depthwise(uniform([2, 1, 5, 4]), uniform([3, 1, 2, 4]), 1),
        Sample::fails(
            depthwise(uniform([2, 4, 5, 3]), uniform([6, 2, 3, 1]), 2),
            "`Filter`: as many groups as channels, thus filters of one channel, are needed",
        ),
        Sample::fails(
            depthwise(uniform([2, 4, 5, 3]), uniform([6, 1, 3, 2]), 2),
            "`Filter`: filters of 4 channels in 2 groups are needed",
        ),
    ]
);

fn depthwise(input: Draw, filter: Draw, groups: i32) -> DepthwiseConv2d<Draw> {
    let Conv2d { input, filter, output, .. } = conv2d(input, filter);
    DepthwiseConv2d { groups, ..with_attrs!(DepthwiseConv2d { input, filter, output }, conv2d(out(), out())) }
}

/// `dinput` and `dfilter` as in `conv2d_grad`.
#[register_op(grad = DepthwiseConv2dGradGrad)]
pub struct DepthwiseConv2dGrad<V = Var> {
    /// Images.
    #[input]
    pub input: V,
    /// Filters.
    #[input]
    pub filter: V,
    #[input("Output@GRAD")]
    pub dout: V,
    #[output("Input@GRAD")]
    pub dinput: Option<V>,
    #[output("Filter@GRAD")]
    pub dfilter: Option<V>,
    /// As in `depthwise_conv2d`.
    #[attr(default = [1, 1])]
    pub strides: Vec<i32>,
    /// As in `depthwise_conv2d`.
    #[attr(default = [0, 0])]
    pub paddings: Vec<i32>,
    /// As in `depthwise_conv2d`.
    #[attr(default = PaddingAlgorithm::Explicit)]
    pub padding_algorithm: PaddingAlgorithm,
    /// As in `depthwise_conv2d`.
    #[attr(default = [1, 1])]
    pub dilations: Vec<i32>,
    /// As in `depthwise_conv2d`.
    #[attr(default = 1, min = 1)]
    pub groups: i32,
    /// As in `depthwise_conv2d`.
    #[attr(default = DataLayout::Nchw)]
    pub data_format: DataLayout,
}

/// As that of `conv2d_grad`.
pub struct DepthwiseConv2dGradGrad;
