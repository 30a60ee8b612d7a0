use autobwd::{Builder, DType, Expr};

use super::{bias, layer_name, parameter};
use crate::{Init, Math};

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
    /// Weights, `[inputs, outputs]`.
    pub weight: Expr,
    /// Bias, `[outputs]`.
    pub bias: Option<Expr>,
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
}

impl Linear {
    /// A layer from `inputs` to `outputs` features: float32, weights by [`Init::XavierUniform`], bias 0.
    pub fn builder(net: &Builder, inputs: usize, outputs: usize) -> LinearBuilder<'_> {
        let (weight, bias) = (Init::XavierUniform, Some(Init::Constant(0.0)));
        LinearBuilder { net, name: None, inputs, outputs, dtype: DType::F32, weight, bias, seed: 0 }
    }

    /// `x · w + b` for `x` of shape `[.., inputs]`. Fails for another number of inputs, or another dtype.
    #[track_caller]
    pub fn forward(&self, x: &Expr) -> Expr {
        let product = x.matmul(&self.weight);
        match &self.bias {
            Some(bias) => product + bias,
            None => product,
        }
    }
}

impl LinearBuilder<'_> {
    super::layer_setters!(name, dtype, init, bias, seed);

    /// Adds the layer's parameters, `linear_0.w` and `linear_0.b`, to the program.
    #[track_caller]
    pub fn build(self) -> Linear {
        let name = layer_name(self.net, "linear", self.name.as_deref());
        self.build_as(&name)
    }

    /// As [`build`](LinearBuilder::build), with this name outside of name scopes.
    #[track_caller]
    pub(super) fn build_as(self, name: &str) -> Linear {
        let (net, dims) = (self.net, [self.inputs, self.outputs]);
        let weight = parameter(net, &format!("{name}.w"), self.dtype, &dims, self.weight, self.seed);
        let bias = bias(net, name, self.dtype, self.outputs, self.bias, self.seed);
        Linear { weight, bias }
    }
}
