//! Convolutions, and their transposes, as layers.

use autobwd::{Builder, DType, Error, Expr, New, emit};

use super::{bias, parameter};
use crate::{
    Init,
    conv::{self, ConvAttrs},
    elementwise::ElementwiseAdd,
};

/// `out = conv2d(x, w) + b` for images in the order image, channel, row, column.
///
/// ```
/// use autobwd::{Builder, DType};
/// use autobwd_ops::{Math, nn};
/// let net = Builder::new();
/// let x = net.input("x", DType::F32, &[-1, 3, 32, 32]);
/// let h = nn::Conv2d::builder(&net, 3, 16, 5).padding(2).seed(7).build().forward(&x).relu().max_pool2d(2, 2);
/// assert_eq!(h.dims().to_string(), "[-1, 16, 16, 16]");
/// ```
#[derive(Debug)]
pub struct Conv2d {
    /// Filters, `[outputs, inputs / groups, size, size]`.
    pub weight: Expr,
    /// Bias, `[outputs]`.
    pub bias: Option<Expr>,
    windows: Windows,
}

/// The transpose of [`Conv2d`], plus a bias: with a stride, images become larger.
///
/// ```
/// use autobwd::{Builder, DType};
/// use autobwd_ops::nn;
/// let net = Builder::new();
/// let x = net.input("x", DType::F32, &[-1, 16, 8, 8]);
/// let h = nn::Conv2dTranspose::builder(&net, 16, 3, 4).stride(2).padding(1).seed(7).build().forward(&x);
/// assert_eq!(h.dims().to_string(), "[-1, 3, 16, 16]");
/// ```
#[derive(Debug)]
pub struct Conv2dTranspose {
    /// Filters, `[inputs, outputs / groups, size, size]`.
    pub weight: Expr,
    /// Bias, `[outputs]`.
    pub bias: Option<Expr>,
    windows: Windows,
}

/// Where windows are.
#[derive(Clone, Copy, Debug)]
struct Windows {
    stride: i32,
    padding: i32,
    dilation: i32,
    groups: i32,
}

impl Windows {
    fn attrs(self) -> ConvAttrs {
        let Windows { stride, padding, dilation, groups } = self;
        let (strides, paddings, dilations) = (vec![stride; 2], vec![padding; 2], vec![dilation; 2]);
        ConvAttrs::default().strides(strides).paddings(paddings).dilations(dilations).groups(groups)
    }
}

/// What a [`Conv2d`] or [`Conv2dTranspose`] layer is to be like.
#[derive(Debug)]
pub struct Conv2dBuilder<'a, L = Conv2d> {
    net: &'a Builder,
    name: &'static str,
    /// Channels on the filters' first side and on the other, which groups share.
    filters: [usize; 2],
    outputs: usize,
    size: usize,
    dtype: DType,
    weight: Init,
    bias: Option<Init>,
    seed: i32,
    windows: Windows,
    layer: fn(Expr, Option<Expr>, Windows) -> L,
}

impl Conv2d {
    /// A layer from `inputs` to `outputs` channels with windows of `size` by `size` elements, one beside the other:
    /// float32, weights by [`Init::XavierUniform`], bias 0.
    pub fn builder(net: &Builder, inputs: usize, outputs: usize, size: usize) -> Conv2dBuilder<'_> {
        let layer = |weight, bias, windows| Conv2d { weight, bias, windows };
        Conv2dBuilder::new(net, "conv2d", [outputs, inputs], outputs, size, layer)
    }

    /// The convolution of `x`, of shape `[n, inputs, height, width]`, plus the bias. Fails for another number of
    /// channels, or another dtype, and for images that are too small.
    #[track_caller]
    pub fn forward(&self, x: &Expr) -> Expr {
        let op = emit(conv::Conv2dOp {
            input: x.into(),
            filter: (&self.weight).into(),
            output: New,
            conv: self.windows.attrs(),
        });
        match &self.bias {
            Some(bias) => {
                emit(ElementwiseAdd { x: (&op.output).into(), y: bias.into(), out: New, axis: 1 }).out
            }
            None => op.output,
        }
    }
}

impl Conv2dTranspose {
    /// A layer from `inputs` to `outputs` channels with windows of `size` by `size` elements, one beside the other:
    /// float32, weights by [`Init::XavierUniform`], bias 0.
    pub fn builder(
        net: &Builder,
        inputs: usize,
        outputs: usize,
        size: usize,
    ) -> Conv2dBuilder<'_, Conv2dTranspose> {
        let layer = |weight, bias, windows| Conv2dTranspose { weight, bias, windows };
        Conv2dBuilder::new(net, "conv2d_transpose", [inputs, outputs], outputs, size, layer)
    }

    /// The transposed convolution of `x`, of shape `[n, inputs, height, width]`, plus the bias. Of `height` become
    /// `(height - 1) * stride + dilation * (size - 1) + 1 - 2 * padding`. Fails for another number of channels, or another
    /// dtype, and for paddings that leave nothing.
    #[track_caller]
    pub fn forward(&self, x: &Expr) -> Expr {
        let op = emit(conv::Conv2dTransposeOp {
            input: x.into(),
            filter: (&self.weight).into(),
            bias: self.bias.as_ref().map(Into::into),
            output: New,
            conv: self.windows.attrs(),
            output_padding: vec![],
            output_size: vec![],
        });
        op.output
    }
}

impl<'a, L> Conv2dBuilder<'a, L> {
    fn new(
        net: &'a Builder,
        name: &'static str,
        filters: [usize; 2],
        outputs: usize,
        size: usize,
        layer: fn(Expr, Option<Expr>, Windows) -> L,
    ) -> Self {
        Conv2dBuilder {
            net,
            name,
            filters,
            outputs,
            size,
            dtype: DType::F32,
            weight: Init::XavierUniform,
            bias: Some(Init::Constant(0.0)),
            seed: 0,
            windows: Windows { stride: 1, padding: 0, dilation: 1, groups: 1 },
            layer,
        }
    }

    /// With parameters of that dtype.
    #[must_use]
    pub fn dtype(self, dtype: DType) -> Self {
        Conv2dBuilder { dtype, ..self }
    }

    /// With weights initialised like that.
    #[must_use]
    pub fn init(self, weight: Init) -> Self {
        Conv2dBuilder { weight, ..self }
    }

    /// With a bias initialised like that, or none.
    #[must_use]
    pub fn bias(self, bias: Option<Init>) -> Self {
        Conv2dBuilder { bias, ..self }
    }

    /// With random values that follow from `seed` and the parameters' names.
    #[must_use]
    pub fn seed(self, seed: i32) -> Self {
        Conv2dBuilder { seed, ..self }
    }

    /// With windows that are so many elements apart.
    #[must_use]
    pub fn stride(self, stride: i32) -> Self {
        Conv2dBuilder { windows: Windows { stride, ..self.windows }, ..self }
    }

    /// With windows that reach so far over the edges, where zeros are.
    #[must_use]
    pub fn padding(self, padding: i32) -> Self {
        Conv2dBuilder { windows: Windows { padding, ..self.windows }, ..self }
    }

    /// With so many elements from one element of a window to the next.
    #[must_use]
    pub fn dilation(self, dilation: i32) -> Self {
        Conv2dBuilder { windows: Windows { dilation, ..self.windows }, ..self }
    }

    /// With so many equal shares of the channels, each of which has filters of its own.
    #[must_use]
    pub fn groups(self, groups: i32) -> Self {
        Conv2dBuilder { windows: Windows { groups, ..self.windows }, ..self }
    }

    /// Adds the layer's parameters, `conv2d_0.w` and `conv2d_0.b`, say, to the program. The weight fails if the channels do
    /// not make so many groups.
    #[track_caller]
    pub fn build(self) -> L {
        let Conv2dBuilder { net, filters: [first, shared], outputs, size, windows, .. } = self;
        let groups = windows.groups;
        let share =
            usize::try_from(groups).ok().filter(|groups| *groups > 0 && shared.is_multiple_of(*groups));
        let name = net.layer_name(self.name);
        let weight = match share {
            Some(groups) => {
                let dims = [first, shared / groups, size, size];
                parameter(net, &format!("{name}.w"), self.dtype, &dims, self.weight, self.seed)
            }
            None => {
                let text = format!("{shared} channels do not make {groups} equal shares");
                net.failed(Error::attr("groups", text))
            }
        };
        let bias = bias(net, &name, self.dtype, outputs, self.bias, self.seed);
        (self.layer)(weight, bias, windows)
    }
}
