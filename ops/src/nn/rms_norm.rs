use autobwd::{Builder, DType, Expr};

use super::{layer_name, parameter};
use crate::{Init, Math};

/// Root mean square normalisation over the last axis (Zhang and Sennrich, 2019): `x / √(mean(x²) + epsilon) * scale`.
///
/// ```
/// use autobwd::{Builder, DType, Executor, Scope, Tensor};
/// use autobwd_ops::nn::RmsNorm;
/// let net = Builder::new();
/// let x = net.input("x", DType::F32, &[-1, 2]);
/// let y = RmsNorm::builder(&net, 2).epsilon(0.0).build().forward(&x);
///
/// let (mut executor, mut scope) = (Executor::new(), Scope::new());
/// executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
/// let x = Tensor::from_vec([1, 2], vec![1.0_f32, 7.0])?;
/// let y = executor.run(&net.program()?, &mut scope, &[("x", &x)], &[&y.name()])?;
/// assert_eq!(y[0].slice::<f32>()?, [0.2, 1.4]);
/// # Ok::<(), autobwd::Error>(())
/// ```
#[derive(Debug)]
pub struct RmsNorm {
    /// Scale, `[width]`, 1 at first.
    pub scale: Expr,
    /// Added to the mean of the squares, so that divisors stay above 0.
    pub epsilon: f64,
}

/// Builder of a [`RmsNorm`] layer.
#[derive(Debug)]
pub struct RmsNormBuilder<'a> {
    net: &'a Builder,
    name: Option<String>,
    width: usize,
    dtype: DType,
    epsilon: f64,
}

impl RmsNorm {
    /// A layer for vectors of `width` elements: float32, with an epsilon of 1e-6.
    pub fn builder(net: &Builder, width: usize) -> RmsNormBuilder<'_> {
        RmsNormBuilder { net, name: None, width, dtype: DType::F32, epsilon: 1e-6 }
    }

    /// The normalised vectors of `x`, `[.., width]`. Fails for another width or dtype.
    #[track_caller]
    pub fn forward(&self, x: &Expr) -> Expr {
        x * (x.square().mean_keepdim(&[-1]) + self.epsilon).rsqrt() * &self.scale
    }
}

impl RmsNormBuilder<'_> {
    super::layer_setters!(name, dtype);

    /// Sets `epsilon`, which is added to the mean of the squares; 1e-6 by default.
    #[must_use]
    pub fn epsilon(self, epsilon: f64) -> Self {
        RmsNormBuilder { epsilon, ..self }
    }

    /// Adds the scale, `rms_norm_0.scale`, to the program.
    #[track_caller]
    pub fn build(self) -> RmsNorm {
        let RmsNormBuilder { net, name, width, dtype, epsilon } = self;
        let name = format!("{}.scale", layer_name(net, "rms_norm", name.as_deref()));
        RmsNorm { scale: parameter(net, &name, dtype, &[width], Init::Constant(1.0), 0), epsilon }
    }
}
