use autobwd::{Builder, DType, Expr, New, emit};

use super::{bias, layer_name, parameter, weight_name};
use crate::{Init, matmul::MatmulV2};

/// Fully connected layer: `out = x · w + b`.
///
/// ```
/// use autobwd::{Builder, DType};
/// use autobwd_ops::nn;
/// let net = Builder::new();
/// let x = net.input("x", DType::F32, &[-1, 64]);
/// let out = nn::Linear::builder(&net, 64, 10).seed(7).build().forward(&x);
/// assert_eq!(out.dims().to_string(), "[-1, 10]");
/// ```
#[derive(Debug)]
pub struct Linear {
    /// Weights, `[inputs, outputs]`; as [PyTorch has them](LinearBuilder::torch), `[outputs, inputs]`.
    pub weight: Expr,
    /// Bias, `[outputs]`.
    pub bias: Option<Expr>,
    /// Whether the weights are `[outputs, inputs]`.
    pub is_transposed: bool,
}

/// Builder of a [`Linear`] layer.
#[derive(Debug)]
pub struct LinearBuilder<'a> {
    net: &'a Builder,
    name: Option<String>,
    inputs: usize,
    outputs: usize,
    dtype: DType,
    weight: Init,
    bias: Option<Init>,
    seed: i32,
    is_torch: bool,
}

impl Linear {
    /// A layer from `inputs` to `outputs` features: float32, weights by [`Init::XavierUniform`], bias 0.
    pub fn builder(net: &Builder, inputs: usize, outputs: usize) -> LinearBuilder<'_> {
        let (weight, bias) = (Init::XavierUniform, Some(Init::Constant(0.0)));
        LinearBuilder {
            net,
            name: None,
            inputs,
            outputs,
            dtype: DType::F32,
            weight,
            bias,
            seed: 0,
            is_torch: false,
        }
    }

    /// `x · w + b` for `x` of shape `[.., inputs]`. Fails for another number of inputs, or another dtype.
    #[track_caller]
    pub fn forward(&self, x: &Expr) -> Expr {
        let (x, y) = (x.into(), (&self.weight).into());
        let product = emit(MatmulV2 { x, y, out: New, trans_x: false, trans_y: self.is_transposed }).out;
        match &self.bias {
            Some(bias) => product + bias,
            None => product,
        }
    }
}

impl LinearBuilder<'_> {
    super::layer_setters!(name, dtype, init, bias, seed, torch);

    /// Adds the layer's parameters, `linear_0.w` and `linear_0.b`, to the program.
    #[track_caller]
    pub fn build(self) -> Linear {
        let name = layer_name(self.net, "linear", self.name.as_deref());
        self.build_as(&name)
    }

    /// As [`build`](LinearBuilder::build), with this name outside of name scopes.
    #[track_caller]
    pub(super) fn build_as(self, name: &str) -> Linear {
        let LinearBuilder { net, inputs, outputs, dtype, weight, bias: initial, seed, is_torch, .. } = self;
        let dims = if is_torch { [outputs, inputs] } else { [inputs, outputs] };
        let weight = parameter(net, &weight_name(name, "w", is_torch), dtype, &dims, weight, seed);
        let bias = bias(net, name, dtype, outputs, initial, seed, is_torch);
        Linear { weight, bias, is_transposed: is_torch }
    }
}
