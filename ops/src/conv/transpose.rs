//! What convolutions are made of, as an operator: their transposes.

use autobwd::{
    Buf, Cx, GradCx, GradRule, Infer, Kernel, Meta, Result, Var, check::*, register_op, with_float,
};

use super::{Attrs, attrs, same_shape, with_attrs};
use crate::{
    common::{PART, Real, grad_grad_of_product, pieces},
    image::PaddingAlgorithm,
    norm::DataLayout,
    reduce::ReduceSum,
};

/// Transposed convolution, the gradient of `conv2d` for its images:
/// `output[m, y * stride + i * dilation - padding, …] = Σ input[c, y, x] * filter[c, m, i, j] + bias[m]`, summed over the
/// channels `c` of a group and all that meets there.
#[register_op(grad = Conv2dTransposeRule)]
pub struct Conv2dTranspose<V = Var> {
    /// Images, in the order that `data_format` says.
    #[input]
    pub input: V,
    /// Filters, `[channels, channels of output / groups, height, width]`; each of `groups` equal shares of the channels
    /// makes a share of those of the output.
    #[input]
    pub filter: V,
    /// What is added to each channel of the output; nothing where absent.
    #[input]
    pub bias: Option<V>,
    /// An image for each.
    #[output]
    pub output: V,
    /// From one window to the next, down and across.
    #[attr(default = [1, 1])]
    pub strides: Vec<i32>,
    /// How far windows reach over the edges of the output: down and across, or top, bottom, left and right.
    #[attr(default = [0, 0])]
    pub paddings: Vec<i32>,
    /// Rows and columns that the output has more at its end, fewer than stride or dilation; none stands for 0.
    #[attr(default = [])]
    pub output_padding: Vec<i32>,
    /// Height and width of the output, where strides leave a choice; none stands for the smallest.
    #[attr(default = [])]
    pub output_size: Vec<i32>,
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
impl Infer for Conv2dTranspose<Meta> {
    fn infer(&mut self) -> Result<()> {
        let (size, padding) = (&self.output_size, &self.output_padding);
        let dims = attrs!(self).transposed(&self.input, &self.filter, size, padding)?;
        self.output.set(self.input.dtype, dims);
        let (_, channels, _) = self.data_format.split(self.output.unpack()?);
        self.bias.iter().try_for_each(|bias| {
            bias.same_dtype(&self.input)?;
            bias.require(bias.dims.agrees(&[channels]), || {
                format!("[{channels}] is needed, one for each channel")
            })
        })
    }
}
impl Kernel for Conv2dTranspose<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let kernel = attrs!(self).kernel(&self.output, &self.filter, &self.input, &self.input)?;
        with_float!(self.input, T => {
            let output = self.output.slice_mut::<T>()?;
            kernel.data_grad(cx, self.filter.slice()?, self.input.slice()?, output)?;
            if let Some(bias) = &self.bias {
                add_bias(cx, self.data_format, kernel.x.pixels(), bias.slice()?, output);
            }
            Ok(())
        })
    }

    fn scratch_bytes(&self, workers: usize) -> usize {
        let kernel = attrs!(self).kernel(&self.output, &self.filter, &self.input, &self.input);
        kernel.map_or(0, |kernel| kernel.scratch(workers) * self.input.dtype().size())
    }
}
autobwd::samples!(
    Conv2dTranspose,
    [
        transpose(uniform([2, 3, 5, 4]), uniform([3, 4, 2, 1])),
        Conv2dTranspose {
            strides: vec![2, 3],
            paddings: vec![1, 0],
            ..transpose(uniform([2, 3, 4, 1]), uniform([3, 5, 2, 4]))
        },
        Conv2dTranspose {
            bias: Some(uniform([5])),
            data_format: DataLayout::Nhwc,
            paddings: vec![0, 1, 2, 0],
            ..transpose(uniform([2, 4, 1, 3]), uniform([3, 5, 2, 4]))
        },
        Conv2dTranspose {
            bias: Some(uniform([6])),
            groups: 2,
            ..transpose(uniform([1, 4, 3, 2]), uniform([4, 3, 1, 2]))
        },
        Conv2dTranspose {
            bias: Some(uniform([6])),
            groups: 2,
            data_format: DataLayout::Nhwc,
            ..transpose(uniform([1, 3, 2, 4]), uniform([4, 3, 1, 2]))
        },
        Conv2dTranspose { groups: 3, ..transpose(uniform([2, 3, 5, 4]), uniform([3, 1, 2, 4])) },
        Conv2dTranspose { groups: 2, ..transpose(uniform([1, 6, 3, 2]), uniform([6, 1, 3, 2])) },
        Conv2dTranspose {
            strides: vec![3, 2],
            output_size: vec![9, 8],
            ..transpose(uniform([1, 2, 3, 4]), uniform([2, 3, 1, 1]))
        },
        Conv2dTranspose {
            strides: vec![3, 1],
            dilations: vec![1, 3],
            output_padding: vec![1, 2],
            ..transpose(uniform([1, 2, 3, 4]), uniform([2, 3, 4, 2]))
        },
        Conv2dTranspose {
            padding_algorithm: PaddingAlgorithm::Same,
            strides: vec![2, 1],
            ..transpose(uniform([1, 2, 5, 4]), uniform([2, 4, 3, 1]))
        },
        Conv2dTranspose {
            padding_algorithm: PaddingAlgorithm::Valid,
            paddings: vec![7, 7],
            dilations: vec![2, 1],
            ..transpose(uniform([1, 2, 3, 4]), uniform([2, 4, 3, 1]))
        },
        // Windows of one element.
        transpose(uniform([3, 4, 5, 2]), uniform([4, 6, 1, 1])),
        Conv2dTranspose {
            data_format: DataLayout::Nhwc,
            ..transpose(uniform([3, 5, 2, 4]), uniform([4, 6, 1, 1]))
        },
        Conv2dTranspose {
            bias: Some(uniform([4])),
            ..transpose(uniform([0, 3, 5, 2]), uniform([3, 4, 2, 1]))
        },
        Conv2dTranspose {
            bias: Some(uniform([4])),
            ..transpose(uniform([2, 0, 5, 3]), uniform([0, 4, 2, 1]))
        },
        Conv2dTranspose {
            bias: Some(uniform([0])),
            ..transpose(uniform([2, 3, 5, 4]), uniform([3, 0, 2, 1]))
        },
        Sample::fails(
            transpose(uniform([2, 3, 5, 4]), uniform([4, 3, 2, 1])),
            "`Filter`: filters for 3 channels are needed",
        ),
        Sample::fails(
            Conv2dTranspose { groups: 2, ..transpose(uniform([2, 3, 5, 4]), uniform([3, 4, 2, 1])) },
            "`Filter`: filters that make 2 groups are needed",
        ),
        Sample::fails(
            Conv2dTranspose {
                bias: Some(uniform([3])),
                ..transpose(uniform([2, 3, 5, 4]), uniform([3, 4, 2, 1]))
            },
            "`Bias`: [4] is needed, one for each channel",
        ),
        Sample::fails(
            Conv2dTranspose {
                paddings: vec![3, 0],
                ..transpose(uniform([2, 3, 5, 4]), uniform([3, 4, 2, 1]))
            },
            "`Input`: more rows and columns than paddings take away are needed",
        ),
        Sample::fails(
            Conv2dTranspose {
                output_size: vec![6, 5],
                ..transpose(uniform([2, 3, 5, 4]), uniform([3, 4, 2, 1]))
            },
            "attribute `output_size`: 5 is not within 4..5",
        ),
        Sample::fails(
            Conv2dTranspose {
                output_padding: vec![1, 0],
                ..transpose(uniform([2, 3, 5, 4]), uniform([3, 4, 2, 1]))
            },
            "attribute `output_padding`: 1 is not below stride or dilation, 1",
        ),
        Sample::fails(
            Conv2dTranspose {
                output_size: vec![6],
                ..transpose(uniform([2, 3, 5, 4]), uniform([3, 4, 2, 1]))
            },
            "attribute `output_size`: 2 numbers of at least 1 are needed, not [6]",
        ),
    ]
);

fn transpose(input: Draw, filter: Draw) -> Conv2dTranspose<Draw> {
    Conv2dTranspose {
        input,
        filter,
        bias: None,
        output: out(),
        strides: vec![1, 1],
        paddings: vec![0, 0],
        output_padding: vec![],
        output_size: vec![],
        padding_algorithm: PaddingAlgorithm::Explicit,
        dilations: vec![1, 1],
        groups: 1,
        data_format: DataLayout::Nchw,
    }
}

/// Adds to every channel its number.
fn add_bias<T: Real>(cx: &Cx, format: DataLayout, pixels: usize, bias: &[T], images: &mut [T]) {
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

/// One gradient operator, and the sum for the bias: `dbias = Σ dout` over images and pixels.
pub struct Conv2dTransposeRule;
impl GradRule<Conv2dTranspose> for Conv2dTransposeRule {
    fn emit(fwd: &Conv2dTranspose, g: &mut GradCx<'_>) {
        let Conv2dTranspose { input, filter, bias, output, .. } = *fwd;
        let dout = g.grad(output);
        let (dinput, dfilter) = (g.wanted(input), g.wanted(filter));
        if dinput.is_some() || dfilter.is_some() {
            let (output_size, output_padding) = (fwd.output_size.clone(), fwd.output_padding.clone());
            g.push(with_attrs!(
                Conv2dTransposeGrad {
                    input,
                    filter,
                    bias,
                    dout,
                    dinput,
                    dfilter,
                    output_size,
                    output_padding
                },
                fwd
            ));
        }
        if let Some(dbias) = bias.and_then(|bias| g.wanted(bias)) {
            let dim = match fwd.data_format {
                DataLayout::Nchw => vec![0, 2, 3],
                DataLayout::Nhwc => vec![0, 1, 2],
            };
            g.push(ReduceSum {
                x: dout,
                out: dbias,
                dim,
                keep_dim: false,
                reduce_all: false,
                in_dtype: None,
                out_dtype: None,
            });
        }
    }
}

/// `dinput` = `conv2d` of `dout` with `filter`, `dfilter` = the gradient of its filter for `input`, that of its output.
#[register_op(grad = Conv2dTransposeGradGrad)]
pub struct Conv2dTransposeGrad<V = Var> {
    /// Images.
    #[input]
    pub input: V,
    /// Filters.
    #[input]
    pub filter: V,
    /// What is added to each channel.
    #[input(shape_only)]
    pub bias: Option<V>,
    #[input("Output@GRAD")]
    pub dout: V,
    #[output("Input@GRAD")]
    pub dinput: Option<V>,
    #[output("Filter@GRAD")]
    pub dfilter: Option<V>,
    /// As in `conv2d_transpose`.
    #[attr(default = [1, 1])]
    pub strides: Vec<i32>,
    /// As in `conv2d_transpose`.
    #[attr(default = [0, 0])]
    pub paddings: Vec<i32>,
    /// As in `conv2d_transpose`.
    #[attr(default = [])]
    pub output_padding: Vec<i32>,
    /// As in `conv2d_transpose`.
    #[attr(default = [])]
    pub output_size: Vec<i32>,
    /// As in `conv2d_transpose`.
    #[attr(default = PaddingAlgorithm::Explicit)]
    pub padding_algorithm: PaddingAlgorithm,
    /// As in `conv2d_transpose`.
    #[attr(default = [1, 1])]
    pub dilations: Vec<i32>,
    /// As in `conv2d_transpose`.
    #[attr(default = 1, min = 1)]
    pub groups: i32,
    /// As in `conv2d_transpose`.
    #[attr(default = DataLayout::Nchw)]
    pub data_format: DataLayout,
}
impl Infer for Conv2dTransposeGrad<Meta> {
    fn infer(&mut self) -> Result<()> {
        let (size, padding) = (&self.output_size, &self.output_padding);
        let dims = attrs!(self).transposed(&self.input, &self.filter, size, padding)?;
        same_shape(&self.dout, &self.input, &dims)?;
        self.dinput.iter_mut().for_each(|dinput| dinput.like(&self.input));
        self.dfilter.iter_mut().for_each(|dfilter| dfilter.like(&self.filter));
        Ok(())
    }
}
impl Kernel for Conv2dTransposeGrad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let kernel = attrs!(self).kernel(&self.dout, &self.filter, &self.input, &self.input)?;
        with_float!(self.dout, T => {
            let dout = self.dout.slice::<T>()?;
            if let Some(dinput) = &mut self.dinput {
                kernel.forward(cx, dout, self.filter.slice()?, dinput.slice_mut()?)?;
            }
            if let Some(dfilter) = &mut self.dfilter {
                kernel.filter_grad(cx, dout, self.input.slice()?, dfilter.slice_mut()?)?;
            }
            Ok(())
        })
    }

    fn scratch_bytes(&self, workers: usize) -> usize {
        let kernel = attrs!(self).kernel(&self.dout, &self.filter, &self.input, &self.input);
        let scratch = kernel.map_or(0, |kernel| kernel.grad_scratch(self.dfilter.is_some(), workers));
        scratch * self.dout.dtype().size()
    }
}

/// `ddout` = `conv2d_transpose` of `ddinput` with `filter` and of `input` with `ddfilter`; `dinput` and `dfilter` are the
/// gradients of these.
pub struct Conv2dTransposeGradGrad;
impl GradRule<Conv2dTransposeGrad> for Conv2dTransposeGradGrad {
    fn emit(fwd: &Conv2dTransposeGrad, g: &mut GradCx<'_>) {
        let Conv2dTransposeGrad { input, filter, dout, .. } = *fwd;
        let bias = None;
        let choice = || (fwd.output_size.clone(), fwd.output_padding.clone());
        let convolve = |input, filter, output| {
            let (output_size, output_padding) = choice();
            with_attrs!(Conv2dTranspose { input, filter, bias, output, output_size, output_padding }, fwd)
        };
        let grad = |input, filter, dinput, dfilter| {
            let (output_size, output_padding) = choice();
            with_attrs!(
                Conv2dTransposeGrad {
                    input,
                    filter,
                    bias,
                    dout,
                    dinput,
                    dfilter,
                    output_size,
                    output_padding
                },
                fwd
            )
        };
        grad_grad_of_product(g, [input, filter, dout], [fwd.dinput, fwd.dfilter], convolve, grad);
    }
}
