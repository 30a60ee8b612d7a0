use std::fmt;

use autobwd::{Arg, Builder, DType, Expr, New, emit};

use super::{layer_name, parameter, weight_name};
use crate::{Init, norm};

/// Parameters of a normalisation layer: scale, bias and epsilon.
#[derive(Clone, Debug)]
pub struct Affine {
    /// Scale, 1 at first.
    pub scale: Expr,
    /// Bias, 0 at first.
    pub bias: Expr,
    /// Added to variances, so that divisors stay above 0.
    pub epsilon: f32,
}

/// Builder of a normalisation layer.
pub struct NormBuilder<'a, L> {
    net: &'a Builder,
    kind: &'static str,
    name: Option<String>,
    width: usize,
    dtype: DType,
    epsilon: f32,
    is_torch: bool,
    layer: Box<Make<'a, L>>,
}

impl<L> fmt::Debug for NormBuilder<'_, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NormBuilder")
            .field("kind", &self.kind)
            .field("name", &self.name)
            .field("width", &self.width)
            .finish_non_exhaustive()
    }
}

/// Makes a layer from its name and its affine parameters.
type Make<'a, L> = dyn FnOnce(&str, Affine) -> L + 'a;

impl<'a, L> NormBuilder<'a, L> {
    fn new(
        net: &'a Builder,
        kind: &'static str,
        width: usize,
        layer: impl FnOnce(&str, Affine) -> L + 'a,
    ) -> NormBuilder<'a, L> {
        NormBuilder {
            net,
            kind,
            name: None,
            width,
            dtype: DType::F32,
            epsilon: 1e-5,
            is_torch: false,
            layer: Box::new(layer),
        }
    }

    super::layer_setters!(name, dtype, torch);

    /// Sets `epsilon`, which is added to variances; 1e-5 by default.
    #[must_use]
    pub fn epsilon(self, epsilon: f32) -> Self {
        NormBuilder { epsilon, ..self }
    }

    /// Adds the layer's parameters, such as `layer_norm_0.scale` and `layer_norm_0.bias`, to the program.
    #[track_caller]
    pub fn build(self) -> L {
        let NormBuilder { net, width, dtype, epsilon, is_torch, .. } = self;
        let name = layer_name(net, self.kind, self.name.as_deref());
        let vector = |name: String, value| parameter(net, &name, dtype, &[width], Init::Constant(value), 0);
        let scale = vector(weight_name(&name, "scale", is_torch), 1.0);
        let bias = vector(format!("{name}.bias"), 0.0);
        (self.layer)(&name, Affine { scale, bias, epsilon })
    }
}

/// Layer normalisation over the last axis, with scale and bias (Ba et al., 2016).
///
/// ```
/// use autobwd::{Builder, DType, Executor, Scope, Tensor};
/// use autobwd_ops::nn::LayerNorm;
/// let net = Builder::new();
/// let x = net.input("x", DType::F32, &[-1, 4]);
/// let y = LayerNorm::builder(&net, 4).epsilon(0.0).build().forward(&x);
///
/// let (mut executor, mut scope) = (Executor::new(), Scope::new());
/// executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
/// let x = Tensor::from_vec([1, 4], vec![2.0_f32, 2.0, 6.0, 6.0])?;
/// let y = executor.run(&net.program()?, &mut scope, &[("x", &x)], &[&y.name()])?;
/// assert_eq!(y[0].slice::<f32>()?, [-1.0, -1.0, 1.0, 1.0]);
/// # Ok::<(), autobwd::Error>(())
/// ```
#[derive(Debug)]
pub struct LayerNorm {
    /// Scale and bias, one for each element of a vector.
    pub affine: Affine,
}

impl LayerNorm {
    /// A layer for vectors of `width` elements: float32.
    pub fn builder(net: &Builder, width: usize) -> NormBuilder<'_, LayerNorm> {
        NormBuilder::new(net, "layer_norm", width, |_, affine| LayerNorm { affine })
    }

    /// The normalised vectors of `x`, `[.., width]`. Fails for another width or dtype.
    #[track_caller]
    pub fn forward(&self, x: &Expr) -> Expr {
        let Affine { scale, bias, epsilon } = &self.affine;
        let op = norm::LayerNormOp {
            x: x.into(),
            scale: Some(scale.into()),
            bias: Some(bias.into()),
            y: New,
            mean: New,
            variance: New,
            begin_norm_axis: x.dims().len().saturating_sub(1) as i32,
            epsilon: *epsilon,
        };
        emit(op).y
    }
}

/// Group normalisation, with scale and bias for each channel (Wu and He, 2018).
///
/// ```
/// use autobwd::{Builder, DType};
/// use autobwd_ops::nn::GroupNorm;
/// let net = Builder::new();
/// let x = net.input("x", DType::F32, &[-1, 6, 8, 8]);
/// let y = GroupNorm::builder(&net, 3, 6).build().forward(&x);
/// assert_eq!(y.dims().to_string(), "[-1, 6, 8, 8]");
/// ```
#[derive(Debug)]
pub struct GroupNorm {
    /// Scale and bias, one for each channel.
    pub affine: Affine,
    groups: usize,
}

impl GroupNorm {
    /// A layer for `channels` channels in `groups` groups: float32.
    pub fn builder(net: &Builder, groups: usize, channels: usize) -> NormBuilder<'_, GroupNorm> {
        NormBuilder::new(net, "group_norm", channels, move |_, affine| GroupNorm { affine, groups })
    }

    /// The normalised `x`: samples, channels, positions. Fails for another number of channels, a number that the groups
    /// do not divide, and another dtype.
    #[track_caller]
    pub fn forward(&self, x: &Expr) -> Expr {
        let Affine { scale, bias, epsilon } = &self.affine;
        let op = norm::GroupNormOp {
            x: x.into(),
            scale: Some(scale.into()),
            bias: Some(bias.into()),
            y: New,
            mean: New,
            variance: New,
            epsilon: *epsilon,
            groups: i32::try_from(self.groups).unwrap_or(i32::MAX),
            data_layout: norm::DataLayout::Nchw,
        };
        emit(op).y
    }
}

/// Instance normalisation, with scale and bias for each channel (Ulyanov et al., 2016).
///
/// ```
/// use autobwd::{Builder, DType};
/// use autobwd_ops::nn::InstanceNorm;
/// let net = Builder::new();
/// let x = net.input("x", DType::F32, &[-1, 3, 8, 8]);
/// let y = InstanceNorm::builder(&net, 3).build().forward(&x);
/// assert_eq!(y.dims().to_string(), "[-1, 3, 8, 8]");
/// ```
#[derive(Debug)]
pub struct InstanceNorm {
    /// Scale and bias, one for each channel.
    pub affine: Affine,
}

impl InstanceNorm {
    /// A layer for `channels` channels: float32.
    pub fn builder(net: &Builder, channels: usize) -> NormBuilder<'_, InstanceNorm> {
        NormBuilder::new(net, "instance_norm", channels, |_, affine| InstanceNorm { affine })
    }

    /// The normalised `x`: samples, channels, positions. Fails for another number of channels, or another dtype.
    #[track_caller]
    pub fn forward(&self, x: &Expr) -> Expr {
        let Affine { scale, bias, epsilon } = &self.affine;
        let op = norm::InstanceNormOp {
            x: x.into(),
            scale: Some(scale.into()),
            bias: Some(bias.into()),
            y: New,
            saved_mean: New,
            saved_variance: New,
            epsilon: *epsilon,
        };
        emit(op).y
    }
}

/// Batch normalisation, with scale and bias for each channel (Ioffe and Szegedy, 2015).
///
/// Training uses the statistics of the batch and updates the running statistics; [`infer`](BatchNorm::infer) uses the
/// running statistics.
///
/// ```
/// use autobwd::{Builder, DType, Executor, Scope, Tensor};
/// use autobwd_ops::nn::BatchNorm;
/// let net = Builder::new();
/// let x = net.input("x", DType::F32, &[-1, 1]);
/// let norm = BatchNorm { momentum: 0.5, ..BatchNorm::builder(&net, 1).epsilon(0.0).build() };
/// let y = norm.forward(&x);
///
/// let (mut executor, mut scope) = (Executor::new(), Scope::new());
/// executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
/// let x = Tensor::from_vec([2, 1], vec![4.0_f32, 8.0])?;
/// let y = executor.run(&net.program()?, &mut scope, &[("x", &x)], &[&y.name()])?;
/// assert_eq!(y[0].slice::<f32>()?, [-1.0, 1.0]);
/// // Half of the initial 0 and 1, and half of the batch's 6 and 4.
/// assert_eq!(scope.get(&norm.mean.name())?.item()?, 3.0);
/// assert_eq!(scope.get(&norm.variance.name())?.item()?, 2.5);
/// # Ok::<(), autobwd::Error>(())
/// ```
#[derive(Debug)]
pub struct BatchNorm {
    /// Scale and bias, one for each channel.
    pub affine: Affine,
    /// Running means, 0 at first.
    pub mean: Expr,
    /// Running variances, 1 at first.
    pub variance: Expr,
    /// Decay of the running statistics: the part that is kept at each step.
    pub momentum: f32,
}

impl BatchNorm {
    /// A layer for `channels` channels: float32, with a momentum of 0.9.
    pub fn builder(net: &Builder, channels: usize) -> NormBuilder<'_, BatchNorm> {
        NormBuilder::new(net, "batch_norm", channels, move |name, affine| {
            let dtype = affine.scale.dtype();
            let running = |part: &str, value| {
                let name = format!("{name}.{part}");
                net.persistable(&name, dtype, &[channels], |x| Init::Constant(value).emit(x, 0)).freeze()
            };
            let (mean, variance) = (running("mean", 0.0), running("variance", 1.0));
            BatchNorm { affine, mean, variance, momentum: 0.9 }
        })
    }

    /// `x` (samples, channels, positions) normalised by its own statistics, which update the running ones; in
    /// [evaluation mode](Builder::eval_mode) as [`infer`](BatchNorm::infer). Fails for another number of channels, or
    /// another dtype.
    #[track_caller]
    pub fn forward(&self, x: &Expr) -> Expr {
        self.emit(x, x.builder().is_eval_mode())
    }

    /// Inference: `x` normalised by the running statistics, which are unchanged. Fails as
    /// [`forward`](BatchNorm::forward) does.
    #[track_caller]
    pub fn infer(&self, x: &Expr) -> Expr {
        self.emit(x, true)
    }

    #[track_caller]
    fn emit(&self, x: &Expr, is_test: bool) -> Expr {
        let Affine { scale, bias, epsilon } = &self.affine;
        let op = emit(norm::BatchNormOp {
            x: x.into(),
            scale: Some(scale.into()),
            bias: Some(bias.into()),
            mean: Arg::from(&self.mean),
            variance: (&self.variance).into(),
            y: New,
            mean_out: (&self.mean).into(),
            variance_out: (&self.variance).into(),
            saved_mean: New,
            saved_variance: New,
            reserve_space: None,
            momentum: self.momentum,
            epsilon: *epsilon,
            data_layout: norm::DataLayout::Nchw,
            is_test,
            use_global_stats: false,
            trainable_statistics: false,
        });
        drop([op.saved_mean.freeze(), op.saved_variance.freeze()]);
        op.y
    }
}
