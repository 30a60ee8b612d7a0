//! Convolution layers: `Conv1d`, `Conv2d`, `Conv3d` and `Conv2dTranspose`.

use autobwd::{Builder, DType, Error, Expr, New, emit};

use super::{bias, layer_name, parameter, weight_name};
use crate::{
    Init, Math,
    conv::{self, Conv3dAttrs, ConvAttrs},
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

/// 3-D convolution with bias for volumes `[n, channels, depth, height, width]`.
///
/// ```
/// use autobwd::{Builder, DType};
/// use autobwd_ops::nn;
/// let net = Builder::new();
/// let x = net.input("x", DType::F32, &[-1, 3, 8, 32, 32]);
/// let h = nn::Conv3d::builder(&net, 3, 16, 3).padding(1).stride(2).seed(7).build().forward(&x);
/// assert_eq!(h.dims().to_string(), "[-1, 16, 4, 16, 16]");
/// ```
#[derive(Debug)]
pub struct Conv3d {
    /// Filters, `[outputs, inputs / groups, size, size, size]`.
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

    fn attrs_3d(self) -> Conv3dAttrs {
        let WindowOptions { stride, padding, dilation, groups } = self;
        let (strides, paddings, dilations) = (vec![stride; 3], vec![padding; 3], vec![dilation; 3]);
        Conv3dAttrs::default().strides(strides).paddings(paddings).dilations(dilations).groups(groups)
    }

    /// The same for images of one row.
    fn attrs_of_row(self) -> ConvAttrs {
        let WindowOptions { stride, padding, dilation, groups } = self;
        let (strides, paddings, dilations) = (vec![1, stride], vec![0, padding], vec![1, dilation]);
        ConvAttrs::default().strides(strides).paddings(paddings).dilations(dilations).groups(groups)
    }
}

/// Builder of a [`Conv1d`], [`Conv2d`], [`Conv3d`] or [`Conv2dTranspose`] layer.
#[derive(Debug)]
pub struct ConvBuilder<'a, L> {
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
    is_torch: bool,
    windows: WindowOptions,
    layer: fn(Expr, Option<Expr>, WindowOptions) -> L,
}

impl Conv1d {
    /// A layer from `inputs` to `outputs` channels with windows of `size` elements, stride 1 and no padding: float32,
    /// weights by [`Init::XavierUniform`], bias 0.
    pub fn builder(net: &Builder, inputs: usize, outputs: usize, size: usize) -> ConvBuilder<'_, Conv1d> {
        let layer = |weight, bias, windows| Conv1d { weight, bias, windows };
        ConvBuilder::new(net, "conv1d", [outputs, inputs], outputs, vec![size], layer)
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
        biased(op.output.squeeze(&[2]), self.bias.as_ref())
    }
}

impl Conv2d {
    /// A layer from `inputs` to `outputs` channels with windows of `size` by `size` elements, stride 1 and no padding:
    /// float32, weights by [`Init::XavierUniform`], bias 0.
    pub fn builder(net: &Builder, inputs: usize, outputs: usize, size: usize) -> ConvBuilder<'_, Conv2d> {
        let layer = |weight, bias, windows| Conv2d { weight, bias, windows };
        ConvBuilder::new(net, "conv2d", [outputs, inputs], outputs, vec![size; 2], layer)
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
        biased(op.output, self.bias.as_ref())
    }
}

impl Conv3d {
    /// A layer from `inputs` to `outputs` channels with windows of `size` elements in each direction, stride 1 and no
    /// padding: float32, weights by [`Init::XavierUniform`], bias 0.
    pub fn builder(net: &Builder, inputs: usize, outputs: usize, size: usize) -> ConvBuilder<'_, Conv3d> {
        let layer = |weight, bias, windows| Conv3d { weight, bias, windows };
        ConvBuilder::new(net, "conv3d", [outputs, inputs], outputs, vec![size; 3], layer)
    }

    /// The convolution of `x`, of shape `[n, inputs, depth, height, width]`, plus the bias. Fails for another number of
    /// channels, another dtype, and volumes that are too small.
    #[track_caller]
    pub fn forward(&self, x: &Expr) -> Expr {
        let op = emit(conv::Conv3dOp {
            input: x.into(),
            filter: (&self.weight).into(),
            output: New,
            conv: self.windows.attrs_3d(),
        });
        biased(op.output, self.bias.as_ref())
    }
}

/// `x` plus the bias of its channels.
#[track_caller]
fn biased(x: Expr, bias: Option<&Expr>) -> Expr {
    match bias {
        Some(bias) => emit(ElementwiseAdd { x: (&x).into(), y: bias.into(), out: New, axis: 1 }).out,
        None => x,
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
    ) -> ConvBuilder<'_, Conv2dTranspose> {
        let layer = |weight, bias, windows| Conv2dTranspose { weight, bias, windows };
        ConvBuilder::new(net, "conv2d_transpose", [inputs, outputs], outputs, vec![size; 2], layer)
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

impl<'a, L> ConvBuilder<'a, L> {
    fn new(
        net: &'a Builder,
        kind: &'static str,
        filters: [usize; 2],
        outputs: usize,
        size: Vec<usize>,
        layer: fn(Expr, Option<Expr>, WindowOptions) -> L,
    ) -> Self {
        ConvBuilder {
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
            is_torch: false,
            windows: WindowOptions { stride: 1, padding: 0, dilation: 1, groups: 1 },
            layer,
        }
    }

    super::layer_setters!(name, dtype, init, bias, seed, torch);

    /// Sets the stride of the windows; 1 by default.
    #[must_use]
    pub fn stride(self, stride: i32) -> Self {
        ConvBuilder { windows: WindowOptions { stride, ..self.windows }, ..self }
    }

    /// Sets the zero padding on all sides; 0 by default.
    #[must_use]
    pub fn padding(self, padding: i32) -> Self {
        ConvBuilder { windows: WindowOptions { padding, ..self.windows }, ..self }
    }

    /// Sets the dilation of the windows; 1 by default.
    #[must_use]
    pub fn dilation(self, dilation: i32) -> Self {
        ConvBuilder { windows: WindowOptions { dilation, ..self.windows }, ..self }
    }

    /// Sets the number of channel groups, each with filters of its own; 1 by default.
    #[must_use]
    pub fn groups(self, groups: i32) -> Self {
        ConvBuilder { windows: WindowOptions { groups, ..self.windows }, ..self }
    }

    /// Adds the layer's parameters, such as `conv2d_0.w` and `conv2d_0.b`, to the program. The weight fails if the
    /// number of groups does not divide the channels.
    #[track_caller]
    pub fn build(self) -> L {
        let ConvBuilder { net, filters: [first, shared], outputs, size, is_torch, windows, .. } = self;
        let groups = windows.groups;
        let share =
            usize::try_from(groups).ok().filter(|groups| *groups > 0 && shared.is_multiple_of(*groups));
        let name = layer_name(net, self.kind, self.name.as_deref());
        let weight = match share {
            Some(groups) => {
                let dims = [vec![first, shared / groups], size].concat();
                parameter(net, &weight_name(&name, "w", is_torch), self.dtype, &dims, self.weight, self.seed)
            }
            None => {
                let text = format!("{shared} channels are not divisible by {groups} groups");
                net.failed(Error::attr("groups", text))
            }
        };
        let bias = bias(net, &name, self.dtype, outputs, self.bias, self.seed, is_torch);
        (self.layer)(weight, bias, windows)
    }
}
