//! Transposed convolution with filters for each channel.

use autobwd::{Composed, Composition, Expr, Infer, Meta, New, Result, Var, check::*, emit, register_op};

use super::{Conv2dTransposeOp, ConvAttrs, nhwc, plain, same};

/// Depthwise transposed convolution: every channel has filters of its own, as in `conv2d_transpose` with as many groups as
/// channels.
#[register_op(grad = Composed, composed)]
pub struct DepthwiseConv2dTranspose<V = Var> {
    /// Images, in the order that `data_format` says.
    #[input]
    pub input: V,
    /// Filters, `[channels, filters of a channel, height, width]`.
    #[input]
    pub filter: V,
    /// Added to each channel of the output; may be absent.
    #[input]
    pub bias: Option<V>,
    /// One image for each input image, with `filters of a channel` times as many channels.
    #[output]
    pub output: V,
    /// Extra rows and columns at the end of the output, fewer than stride or dilation; empty means 0.
    #[attr(default = [])]
    pub output_padding: Vec<i32>,
    /// Height and width of the output, where strides leave a choice; empty means the smallest.
    #[attr(default = [])]
    pub output_size: Vec<i32>,
    /// Position of the windows; padding refers to the output, `groups` equals the number of channels.
    #[attrs]
    pub conv: ConvAttrs,
}
impl Infer for DepthwiseConv2dTranspose<Meta> {
    fn infer(&mut self) -> Result<()> {
        let mut plain = Conv2dTransposeOp {
            input: self.input.clone(),
            filter: self.filter.clone(),
            bias: self.bias.clone(),
            output: self.output.clone(),
            conv: self.conv.clone(),
            output_padding: self.output_padding.clone(),
            output_size: self.output_size.clone(),
        };
        plain.infer()?;
        let [channels, ..] = self.filter.unpack::<4>()?;
        self.filter.require(channels.agrees((self.conv.groups as usize).into()), || {
            "as many groups as channels are needed".into()
        })?;
        self.output = plain.output;
        Ok(())
    }
}
impl Composition for DepthwiseConv2dTranspose<Expr> {
    fn compose(&mut self) {
        let op = Conv2dTransposeOp {
            input: (&self.input).into(),
            filter: (&self.filter).into(),
            bias: self.bias.as_ref().map(Into::into),
            output: New,
            conv: self.conv.clone(),
            output_padding: self.output_padding.clone(),
            output_size: self.output_size.clone(),
        };
        self.output = emit(op).output;
    }
}
autobwd::samples!(
    DepthwiseConv2dTranspose,
    [
        depthwise([2, 3, 5, 4], [3, 1, 2, 4], plain().groups(3)),
        depthwise([1, 3, 2, 4], [3, 2, 1, 2], plain().groups(3).strides([2, 3]).paddings([0, 1])),
        depthwise([1, 4, 5, 2], [2, 1, 3, 2], nhwc().groups(2).dilations([1, 2])),
        depthwise([1, 2, 5, 4], [2, 1, 3, 2], same().groups(2).strides([2, 1])),
        DepthwiseConv2dTranspose {
            bias: Some(uniform([6])),
            ..depthwise([2, 3, 4, 1], [3, 2, 1, 3], plain().groups(3))
        },
        DepthwiseConv2dTranspose {
            output_size: vec![7, 8],
            ..depthwise([1, 2, 3, 4], [2, 1, 1, 2], plain().groups(2).strides([3, 2]))
        },
        DepthwiseConv2dTranspose {
            output_padding: vec![1, 0],
            ..depthwise([1, 2, 3, 4], [2, 1, 1, 2], plain().groups(2).strides([3, 2]))
        },
        depthwise([0, 3, 5, 4], [3, 1, 2, 4], plain().groups(3)),
        depthwise([2, 4, 5, 3], [4, 1, 2, 3], plain().groups(2))
            .fails("`Filter`: as many groups as channels are needed"),
        depthwise([2, 3, 5, 4], [4, 1, 2, 3], plain().groups(4))
            .fails("`Filter`: filters for 3 channels are needed"),
    ]
);

fn depthwise(input: [usize; 4], filter: [usize; 4], conv: ConvAttrs) -> DepthwiseConv2dTranspose<Draw> {
    let (input, filter, output) = (uniform(input), uniform(filter), out());
    let (output_padding, output_size) = (vec![], vec![]);
    DepthwiseConv2dTranspose { input, filter, bias: None, output, conv, output_padding, output_size }
}
