//! The operators `conv2d` and `depthwise_conv2d`.

use autobwd::{
    Buf, Composition, Cx, Expr, Infer, Kernel, Meta, Multilinear, New, Result, Var, check::*, emit,
    register_op,
};

use super::{
    ConvAttrs, ConvPart,
    gradients::{PaddedConvolution, channels_first, fail, in_layout},
    nhwc, plain, same, valid,
};

/// A convolution of images and its gradient operator; `$check` rejects filters.
macro_rules! convolution {
    (
        $(#[doc = $doc:literal])* $op:ident $(, $fact:ident)? { $(#[doc = $filter_doc:literal])* filter, $(#[doc = $conv_doc:literal])* conv },
        $check:expr,
        $(#[doc = $grad_doc:literal])* $grad:ident
    ) => {
        $(#[doc = $doc])*
        #[register_op(grad = $grad, infallible, halves $(, $fact)?)]
        pub struct $op<V = Var> {
            /// Images, in the order that `data_format` says.
            #[input]
            pub input: V,
            $(#[doc = $filter_doc])*
            #[input]
            pub filter: V,
            /// One image for each input image, with one channel for each filter.
            #[output]
            pub output: V,
            $(#[doc = $conv_doc])*
            #[attrs]
            pub conv: ConvAttrs,
        }
        impl Infer for $op<Meta> {
            fn infer(&mut self) -> Result<()> {
                self.output.set(self.input.dtype, self.conv.convolved(&self.input, &self.filter)?);
                $check(&self.filter)
            }
        }
        impl Kernel for $op<Buf<'_>> {
            fn run(&mut self, cx: &Cx) -> Result<()> {
                self.conv.convolve(cx, &self.input, &self.filter, &mut self.output)
            }

            fn scratch_bytes(&self, workers: usize) -> usize {
                let slots = [&self.input, &self.filter, &self.output, &self.input];
                self.conv.scratch_bytes(slots, [ConvPart::Forward], workers)
            }
        }

        $(#[doc = $grad_doc])*
        #[register_op(grad_of = $op, grad = Multilinear, inferred, infallible, halves)]
        pub struct $grad<V = Var> {
            pub input: V,
            pub filter: V,
            pub doutput: V,
            #[output]
            pub dinput: Option<V>,
            #[output]
            pub dfilter: Option<V>,
            #[attrs]
            pub conv: ConvAttrs,
        }
        impl Kernel for $grad<Buf<'_>> {
            fn run(&mut self, cx: &Cx) -> Result<()> {
                let slots = [&self.input, &self.filter, &self.doutput, &self.input];
                self.conv.gradients(cx, slots, [&mut self.dinput, &mut None, &mut self.dfilter])
            }

            fn scratch_bytes(&self, workers: usize) -> usize {
                let slots = [&self.input, &self.filter, &self.doutput, &self.input];
                let data = self.dinput.as_ref().map(|_| ConvPart::DataGrad);
                let filter = self.dfilter.as_ref().map(|_| ConvPart::FilterGrad);
                self.conv.scratch_bytes(slots, data.into_iter().chain(filter), workers)
            }
        }
    };
}

convolution!(
    /// Convolution of images: `output[m, y, x] = Σ input[c, y * stride + i * dilation - padding, …] * filter[m, c, i, j]`,
    /// summed over the channels `c` of a group and the elements `i`, `j` of a filter.
    ///
    /// Padding counts as 0.
    Conv2dOp, primitive {
        /// Filters, `[filters, channels / groups, height, width]`; the first of `groups` equal parts of the filters
        /// convolves the first part of the channels, and so on.
        filter,
        /// Position of the windows.
        conv
    },
    |_: &Meta| Ok(()),
    /// `dinput[c, y * stride + i * dilation - padding, …] = Σ doutput[m, y, x] * filter[m, c, i, j]`,
    /// `dfilter[m, c, i, j] = Σ doutput[m, y, x] * input[c, y * stride + i * dilation - padding, …]`, also summed over
    /// images.
    Conv2dGrad
);
impl Composition for Conv2dGrad<Expr> {
    fn compose(&mut self) {
        let (filter, format) = (&self.filter, self.conv.data_format);
        let [x, dy] = [&self.input, &self.doutput].map(|images| channels_first(images, format));
        let axes = match self.conv.axes() {
            Ok(axes) => axes,
            Err(error) => return fail(filter, error, [&mut self.dinput, &mut self.dfilter]),
        };
        let conv = PaddedConvolution::new(&axes, self.conv.groups, filter, [&x, &x]);
        if let Some(dinput) = &mut self.dinput {
            *dinput = in_layout(&conv.data_gradient(&x, &dy, filter), format);
        }
        if let Some(dfilter) = &mut self.dfilter {
            *dfilter = conv.filter_gradient(&x, &dy, filter);
        }
    }
}
autobwd::samples!(
    Conv2dOp,
    [
        conv2d([2, 3, 5, 4], [4, 3, 2, 1], plain()),
        conv2d([2, 3, 6, 5], [4, 3, 1, 2], plain().strides([2, 1])),
        conv2d([2, 6, 5, 3], [4, 3, 1, 2], nhwc().strides([1, 2])),
        conv2d([1, 2, 4, 3], [5, 2, 3, 4], plain().paddings([1, 2])),
        conv2d([1, 2, 3, 4], [4, 2, 3, 1], plain().paddings([0, 1, 2, 3])),
        conv2d([1, 3, 4, 2], [4, 2, 3, 1], nhwc().paddings([0, 1, 2, 0])),
        // Some windows lie entirely in the padding.
        conv2d([1, 3, 2, 4], [5, 3, 2, 1], plain().paddings([3, 2])),
        conv2d([1, 2, 5, 7], [4, 2, 3, 1], plain().dilations([2, 3])),
        conv2d([1, 6, 7, 2], [5, 2, 3, 4], nhwc().dilations([1, 2]).strides([3, 2]).paddings([1, 2])),
        conv2d([3, 4, 5, 2], [6, 2, 3, 1], plain().groups(2)),
        conv2d([3, 5, 2, 4], [6, 2, 3, 1], nhwc().groups(2)),
        conv2d([2, 3, 5, 4], [6, 1, 3, 2], plain().groups(3)),
        conv2d([2, 5, 4, 3], [12, 1, 3, 2], nhwc().groups(3)),
        // Enough channels for products band by band.
        conv2d([2, 32, 4, 3], [3, 32, 3, 2], plain()),
        conv2d([1, 64, 3, 3], [2, 32, 2, 2], plain().paddings([2, 0, 1, 2]).dilations([2, 1]).groups(2)),
        conv2d([1, 4, 3, 64], [2, 32, 2, 2], nhwc().strides([1, 2]).paddings([1, 1]).groups(2)),
        // 1 × 1 windows.
        conv2d([3, 4, 5, 2], [6, 4, 1, 1], plain()),
        conv2d([3, 5, 2, 4], [6, 2, 1, 1], nhwc().groups(2)),
        conv2d([1, 2, 5, 6], [3, 2, 4, 5], same().strides([2, 3]).paddings([7, 7])),
        conv2d([1, 2, 5, 4], [5, 2, 3, 4], same().dilations([2, 2])),
        conv2d([1, 2, 5, 4], [4, 2, 3, 1], valid().paddings([7, 7])),
        conv2d([0, 3, 5, 4], [4, 3, 2, 1], plain()),
        conv2d([0, 5, 4, 3], [4, 3, 2, 1], nhwc()),
        conv2d([2, 0, 5, 4], [4, 0, 2, 1], plain()),
        conv2d([2, 3, 5, 4], [0, 3, 2, 1], plain()),
        conv2d([2, 3, 0, 4], [4, 3, 2, 1], plain().paddings([1, 2])),
        Conv2dOp { input: uniform([2, 3, 5]), ..conv2d([2, 3, 5, 4], [4, 3, 2, 1], plain()) }
            .fails("`Input`: 4 dimensions are needed"),
        Conv2dOp { filter: uniform([4, 3]), ..conv2d([2, 3, 5, 4], [4, 3, 2, 1], plain()) }
            .fails("`Filter`: 4 dimensions are needed"),
        Conv2dOp { filter: integers_below(3, [4, 3, 2, 1]), ..conv2d([2, 3, 5, 4], [4, 3, 2, 1], plain()) }
            .fails("`Filter`: dtype int64 does not match"),
        Conv2dOp { input: integers_below(3, [2, 3, 5, 4]), ..conv2d([2, 3, 5, 4], [4, 3, 2, 1], plain()) }
            .fails("`Input`: floating point numbers are needed"),
        conv2d([2, 3, 5, 4], [4, 2, 3, 1], plain())
            .fails("`Filter`: filters of 3 channels in 1 groups are needed"),
        conv2d([2, 4, 5, 3], [5, 2, 3, 1], plain().groups(2))
            .fails("`Filter`: a number of filters divisible by 2 groups is needed"),
        conv2d([2, 3, 5, 4], [4, 3, 0, 1], plain())
            .fails("`Filter`: windows of at least one element are needed"),
        conv2d([1, 3, 4, 2], [4, 3, 7, 1], plain().paddings([1, 0]))
            .fails("`Input`: at least 5 rows and columns are needed"),
        conv2d([2, 3, 5, 4], [4, 3, 2, 1], plain().strides([1]))
            .fails("attribute `strides`: 2 numbers of at least 1 are needed, not [1]"),
        conv2d([2, 3, 5, 4], [4, 3, 2, 1], plain().dilations([1, 0]))
            .fails("attribute `dilations`: 2 numbers of at least 1 are needed, not [1, 0]"),
        conv2d([2, 3, 5, 4], [4, 3, 2, 1], plain().paddings([1, 2, 3]))
            .fails("attribute `paddings`: 2 or 4 numbers of at least 0 are needed, not [1, 2, 3]"),
        conv2d([2, 3, 5, 4], [4, 3, 2, 1], plain().paddings([0, -1]))
            .fails("attribute `paddings`: 2 or 4 numbers of at least 0 are needed, not [0, -1]"),
        conv2d([2, 3, 5, 4], [4, 3, 2, 1], plain().groups(0)).fails("attribute `groups`: must be at least 1"),
    ]
);

fn conv2d(input: [usize; 4], filter: [usize; 4], conv: ConvAttrs) -> Conv2dOp<Draw> {
    Conv2dOp { input: uniform(input), filter: uniform(filter), output: out(), conv }
}

convolution!(
    /// Depthwise convolution: every channel has filters of its own, as in `conv2d` with as many groups as channels.
    DepthwiseConv2d {
        /// Filters, `[filters, 1, height, width]`, the same number for each channel.
        filter,
        /// Position of the windows; `groups` equals the number of channels.
        conv
    },
    |filter: &Meta| {
        let [_, channels, ..] = filter.unpack::<4>()?;
        filter.require(channels.agrees(1.into()), || {
            "as many groups as channels (filters of one channel) are needed".into()
        })
    },
    /// `dinput` and `dfilter` as in `conv2d_grad`.
    DepthwiseConv2dGrad
);
impl Composition for DepthwiseConv2d<Expr> {
    fn compose(&mut self) {
        let (input, filter, conv) = ((&self.input).into(), (&self.filter).into(), self.conv.clone());
        self.output = emit(Conv2dOp { input, filter, output: New, conv }).output;
    }
}
autobwd::samples!(
    DepthwiseConv2d,
    [
        depthwise([2, 3, 5, 4], [3, 1, 2, 4], plain().groups(3)),
        depthwise([2, 3, 4, 5], [6, 1, 3, 2], plain().groups(3)),
        // Enough filters for each channel that products pay.
        depthwise([3, 2, 4, 5], [10, 1, 3, 2], plain().groups(2)),
        depthwise([2, 5, 4, 3], [3, 1, 2, 4], nhwc().groups(3)),
        depthwise([1, 5, 4, 2], [6, 1, 3, 2], nhwc().groups(2).strides([2, 1]).paddings([1, 2])),
        depthwise(
            [1, 3, 6, 5],
            [6, 1, 2, 4],
            plain().groups(3).strides([2, 3]).paddings([0, 1, 2, 3]).dilations([2, 1])
        ),
        depthwise([2, 3, 5, 11], [3, 1, 2, 9], same().groups(3)),
        // Rows of more than one loop step.
        depthwise([1, 2, 3, 21], [2, 1, 3, 4], plain().groups(2)),
        depthwise([1, 2, 4, 21], [4, 1, 3, 3], plain().groups(2).paddings([1, 1])),
        depthwise([1, 2, 3, 37], [2, 1, 3, 5], plain().groups(2).strides([1, 2]).paddings([1, 2])),
        // Channels in the lanes of vectors.
        depthwise([2, 10, 4, 3], [10, 1, 3, 3], plain().groups(10).paddings([1, 1])),
        depthwise([1, 18, 5, 4], [18, 1, 3, 5], plain().groups(18).strides([2, 2]).paddings([1, 2])),
        depthwise(
            [1, 8, 5, 6],
            [8, 1, 2, 4],
            plain().groups(8).strides([1, 2]).dilations([2, 1]).paddings([0, 1, 2, 3])
        ),
        depthwise([0, 3, 5, 4], [3, 1, 2, 4], plain().groups(3)),
        depthwise([2, 1, 5, 4], [3, 1, 2, 4], plain()),
        depthwise([2, 4, 5, 3], [6, 2, 3, 1], plain().groups(2))
            .fails("`Filter`: as many groups as channels (filters of one channel) are needed"),
        depthwise([2, 4, 5, 3], [6, 1, 3, 2], plain().groups(2))
            .fails("`Filter`: filters of 4 channels in 2 groups are needed"),
    ]
);

fn depthwise(input: [usize; 4], filter: [usize; 4], conv: ConvAttrs) -> DepthwiseConv2d<Draw> {
    DepthwiseConv2d { input: uniform(input), filter: uniform(filter), output: out(), conv }
}
