//! Convolution layers: `Conv1d`, `Conv2d` and `Conv2dTranspose`.

use autobwd::{Builder, DType, Error, Expr, New, emit};

use super::{bias, layer_name, parameter};
use crate::{
    Init, Math,
    conv::{self, ConvAttrs},
    elementwise::ElementwiseAdd,
};

/// 2-D convolution with bias, `out = conv2d(x, w) + b`, for images in layout `NCHW`.
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
    windows: WindowOptions,
}

/// 1-D convolution with bias for sequences `[n, channels, length]`: a [`Conv2d`] over images of one row.
///
/// ```
/// use autobwd::{Builder, DType};
/// use autobwd_ops::nn;
/// let net = Builder::new();
/// let x = net.input("x", DType::F32, &[-1, 3, 32]);
/// let h = nn::Conv1d::builder(&net, 3, 16, 5).padding(2).stride(2).seed(7).build().forward(&x);
/// assert_eq!(h.dims().to_string(), "[-1, 16, 16]");
/// ```
#[derive(Debug)]
pub struct Conv1d {
    /// Filters, `[outputs, inputs / groups, size]`.
    pub weight: Expr,
    /// Bias, `[outputs]`.
    pub bias: Option<Expr>,
    windows: WindowOptions,
}

/// Transposed 2-D convolution with bias; a stride enlarges images.
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
    windows: WindowOptions,
}

/// Position of the windows.
#[derive(Clone, Copy, Debug)]
struct WindowOptions {
    stride: i32,
    padding: i32,
    dilation: i32,
    groups: i32,
}

impl WindowOptions {
    fn attrs(self) -> ConvAttrs {
        let WindowOptions { stride, padding, dilation, groups } = self;
        let (strides, paddings, dilations) = (vec![stride; 2], vec![padding; 2], vec![dilation; 2]);
        ConvAttrs::default().strides(strides).paddings(paddings).dilations(dilations).groups(groups)
    }

    /// The same for images of one row.
    fn attrs_of_row(self) -> ConvAttrs {
        let WindowOptions { stride, padding, dilation, groups } = self;
        let (strides, paddings, dilations) = (vec![1, stride], vec![0, padding], vec![1, dilation]);
        ConvAttrs::default().strides(strides).paddings(paddings).dilations(dilations).groups(groups)
    }
}

/// Builder of a [`Conv1d`], [`Conv2d`] or [`Conv2dTranspose`] layer.
#[derive(Debug)]
pub struct Conv2dBuilder<'a, L = Conv2d> {
    net: &'a Builder,
    kind: &'static str,
    name: Option<String>,
    /// Channels on the first and second side of the filters, without division by groups.
    filters: [usize; 2],
    outputs: usize,
    /// Size of the windows in each direction.
    size: Vec<usize>,
    dtype: DType,
    weight: Init,
    bias: Option<Init>,
    seed: i32,
    windows: WindowOptions,
    layer: fn(Expr, Option<Expr>, WindowOptions) -> L,
}

impl Conv1d {
    /// A layer from `inputs` to `outputs` channels with windows of `size` elements, stride 1 and no padding: float32,
    /// weights by [`Init::XavierUniform`], bias 0.
    pub fn builder(net: &Builder, inputs: usize, outputs: usize, size: usize) -> Conv2dBuilder<'_, Conv1d> {
        let layer = |weight, bias, windows| Conv1d { weight, bias, windows };
        Conv2dBuilder::new(net, "conv1d", [outputs, inputs], outputs, vec![size], layer)
    }

    /// The convolution of `x`, of shape `[n, inputs, length]`, plus the bias. Fails for another number of channels,
    /// another dtype, and sequences that are too short.
    #[track_caller]
    pub fn forward(&self, x: &Expr) -> Expr {
        let op = emit(conv::Conv2dOp {
            input: x.unsqueeze(&[2]).into(),
            filter: self.weight.unsqueeze(&[2]).into(),
            output: New,
            conv: self.windows.attrs_of_row(),
        });
        let out = op.output.squeeze(&[2]);
        match &self.bias {
            Some(bias) => emit(ElementwiseAdd { x: (&out).into(), y: bias.into(), out: New, axis: 1 }).out,
            None => out,
        }
    }
}

impl Conv2d {
    /// A layer from `inputs` to `outputs` channels with windows of `size` by `size` elements, stride 1 and no padding:
    /// float32, weights by [`Init::XavierUniform`], bias 0.
    pub fn builder(net: &Builder, inputs: usize, outputs: usize, size: usize) -> Conv2dBuilder<'_> {
        let layer = |weight, bias, windows| Conv2d { weight, bias, windows };
        Conv2dBuilder::new(net, "conv2d", [outputs, inputs], outputs, vec![size; 2], layer)
    }

    /// The convolution of `x`, of shape `[n, inputs, height, width]`, plus the bias. Fails for another number of
    /// channels, another dtype, and images that are too small.
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
    /// A layer from `inputs` to `outputs` channels with windows of `size` by `size` elements, stride 1 and no padding:
    /// float32, weights by [`Init::XavierUniform`], bias 0.
    pub fn builder(
        net: &Builder,
        inputs: usize,
        outputs: usize,
        size: usize,
    ) -> Conv2dBuilder<'_, Conv2dTranspose> {
        let layer = |weight, bias, windows| Conv2dTranspose { weight, bias, windows };
        Conv2dBuilder::new(net, "conv2d_transpose", [inputs, outputs], outputs, vec![size; 2], layer)
    }

    /// The transposed convolution of `x`, of shape `[n, inputs, height, width]`, plus the bias. The output height is
    /// `(height - 1) * stride + dilation * (size - 1) + 1 - 2 * padding`, the width likewise. Fails for another number
    /// of channels, another dtype, and paddings that leave no output.
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
        kind: &'static str,
        filters: [usize; 2],
        outputs: usize,
        size: Vec<usize>,
        layer: fn(Expr, Option<Expr>, WindowOptions) -> L,
    ) -> Self {
        Conv2dBuilder {
            net,
            kind,
            name: None,
            filters,
            outputs,
            size,
            dtype: DType::F32,
            weight: Init::XavierUniform,
            bias: Some(Init::Constant(0.0)),
            seed: 0,
            windows: WindowOptions { stride: 1, padding: 0, dilation: 1, groups: 1 },
            layer,
        }
    }

    /// Names the layer, within the current [name scope](Builder::name_scope): `stem.w` for a layer called `stem`.
    #[must_use]
    pub fn name(self, name: impl Into<String>) -> Self {
        Conv2dBuilder { name: Some(name.into()), ..self }
    }

    /// Sets the dtype of the parameters.
    #[must_use]
    pub fn dtype(self, dtype: DType) -> Self {
        Conv2dBuilder { dtype, ..self }
    }

    /// Sets the initialiser of the weights.
    #[must_use]
    pub fn init(self, weight: Init) -> Self {
        Conv2dBuilder { weight, ..self }
    }

    /// Sets the initialiser of the bias; `None` for no bias.
    #[must_use]
    pub fn bias(self, bias: Option<Init>) -> Self {
        Conv2dBuilder { bias, ..self }
    }

    /// Sets the seed; random values follow from `seed` and the parameters' names.
    #[must_use]
    pub fn seed(self, seed: i32) -> Self {
        Conv2dBuilder { seed, ..self }
    }

    /// Sets the stride of the windows; 1 by default.
    #[must_use]
    pub fn stride(self, stride: i32) -> Self {
        Conv2dBuilder { windows: WindowOptions { stride, ..self.windows }, ..self }
    }

    /// Sets the zero padding on all sides; 0 by default.
    #[must_use]
    pub fn padding(self, padding: i32) -> Self {
        Conv2dBuilder { windows: WindowOptions { padding, ..self.windows }, ..self }
    }

    /// Sets the dilation of the windows; 1 by default.
    #[must_use]
    pub fn dilation(self, dilation: i32) -> Self {
        Conv2dBuilder { windows: WindowOptions { dilation, ..self.windows }, ..self }
    }

    /// Sets the number of channel groups, each with filters of its own; 1 by default.
    #[must_use]
    pub fn groups(self, groups: i32) -> Self {
        Conv2dBuilder { windows: WindowOptions { groups, ..self.windows }, ..self }
    }

    /// Adds the layer's parameters, such as `conv2d_0.w` and `conv2d_0.b`, to the program. The weight fails if the
    /// number of groups does not divide the channels.
    #[track_caller]
    pub fn build(self) -> L {
        let Conv2dBuilder { net, filters: [first, shared], outputs, size, windows, .. } = self;
        let groups = windows.groups;
        let share =
            usize::try_from(groups).ok().filter(|groups| *groups > 0 && shared.is_multiple_of(*groups));
        let name = layer_name(net, self.kind, self.name.as_deref());
        let weight = match share {
            Some(groups) => {
                let dims = [vec![first, shared / groups], size].concat();
                parameter(net, &format!("{name}.w"), self.dtype, &dims, self.weight, self.seed)
            }
            None => {
                let text = format!("{shared} channels are not divisible by {groups} groups");
                net.failed(Error::attr("groups", text))
            }
        };
        let bias = bias(net, &name, self.dtype, outputs, self.bias, self.seed);
        (self.layer)(weight, bias, windows)
    }
}
