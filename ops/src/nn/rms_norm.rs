use autobwd::{Builder, DType, Expr};

use super::{layer_name, parameter, weight_name};
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
    /// Scale, `[width]`, 1 at first; 0 if it is [shifted](RmsNormBuilder::shifted).
    pub scale: Expr,
    /// Added to the mean of the squares, so that divisors stay above 0.
    pub epsilon: f64,
    /// Whether the factor is `1 + scale`.
    pub is_shifted: bool,
}

/// Builder of a [`RmsNorm`] layer.
#[derive(Debug)]
pub struct RmsNormBuilder<'a> {
    net: &'a Builder,
    name: Option<String>,
    width: usize,
    dtype: DType,
    epsilon: f64,
    is_shifted: bool,
    is_torch: bool,
}

impl RmsNorm {
    /// A layer for vectors of `width` elements: float32, with an epsilon of 1e-6.
    pub fn builder(net: &Builder, width: usize) -> RmsNormBuilder<'_> {
        RmsNormBuilder {
            net,
            name: None,
            width,
            dtype: DType::F32,
            epsilon: 1e-6,
            is_shifted: false,
            is_torch: false,
        }
    }

    /// The normalised vectors of `x`, `[.., width]`. Fails for another width or dtype.
    #[track_caller]
    pub fn forward(&self, x: &Expr) -> Expr {
        let dtype = x.dtype();
        // Published models normalise in 32 bits, and round before the scale or, if it is shifted, after it.
        let widened = |x: &Expr| if dtype.is_half() { x.cast(DType::F32) } else { x.clone() };
        let rounded = |x: Expr| if dtype.is_half() { x.cast(dtype) } else { x };
        let x = widened(x);
        let normalised = &x * (x.square().mean_keepdim(&[-1]) + self.epsilon).rsqrt();
        match self.is_shifted {
            true => rounded(normalised * (widened(&self.scale) + 1.0)),
            false => rounded(normalised) * &self.scale,
        }
    }
}

impl RmsNormBuilder<'_> {
    super::layer_setters!(name, dtype, torch);

    /// Sets `epsilon`, which is added to the mean of the squares; 1e-6 by default.
    #[must_use]
    pub fn epsilon(self, epsilon: f64) -> Self {
        RmsNormBuilder { epsilon, ..self }
    }

    /// Multiplies by `1 + scale`, with a scale of 0 at first, as Gemma does (Gemma Team, 2024).
    #[must_use]
    pub fn shifted(self) -> Self {
        RmsNormBuilder { is_shifted: true, ..self }
    }

    /// Adds the scale, `rms_norm_0.scale`, to the program.
    #[track_caller]
    pub fn build(self) -> RmsNorm {
        let RmsNormBuilder { net, name, width, dtype, epsilon, is_shifted, is_torch } = self;
        let layer = layer_name(net, "rms_norm", name.as_deref());
        let (name, initial) = (weight_name(&layer, "scale", is_torch), if is_shifted { 0.0 } else { 1.0 });
        let scale = parameter(net, &name, dtype, &[width], Init::Constant(initial), 0);
        RmsNorm { scale, epsilon, is_shifted }
    }
}
