//! Batch normalisation.

use autobwd::{
    Buf, Composed, Composition, Cx, DType, Expr, GradCx, GradRule, Infer, Kernel, Meta, New, Result, Var,
    check::*,
    op::{LaneOf, VectorLoops, Vectorised, map_lanes, with_float},
    register_op,
    tensor::OptionalBuf,
};

use super::{
    DataLayout, check_parameter_dtype,
    decomposition::{self, affine, mul, sub},
    tiling::NormTiling,
};
use crate::{
    Math,
    fill::FillConstant,
    kernel_helpers::{KernelFloat, wide},
    math::in_dtype,
};

/// Batch normalisation of each channel: `y = scale * (x - m) / √(v + epsilon) + bias`.
///
/// In training, `m` and `v` are mean and variance of the channel in `x`, and the running statistics are updated,
/// usually in place: `mean_out = momentum * mean + (1 - momentum) * m`, and `variance_out` likewise; a batch of no
/// elements leaves them. With `is_test`
/// (unless `trainable_statistics`) or `use_global_stats`, `m` and `v` are `mean` and `variance`, which are unchanged.
#[register_op(grad = BatchNormRule, infallible)]
pub struct BatchNormOp<V = Var> {
    /// Two to five dimensions. If it has 16 bits, the numbers of the channels may be float32.
    #[input]
    pub x: V,
    /// Scale, one for each channel; 1 if absent.
    #[input]
    pub scale: Option<V>,
    /// Bias, one for each channel; 0 if absent.
    #[input]
    pub bias: Option<V>,
    /// Running mean of each channel.
    #[input]
    pub mean: V,
    /// Running variance of each channel.
    #[input]
    pub variance: V,
    /// Same shape as `x`.
    #[output(like = x)]
    pub y: V,
    /// Updated running means.
    #[output(inplace = mean, like = mean)]
    pub mean_out: V,
    /// Updated running variances.
    #[output(inplace = variance, like = variance)]
    pub variance_out: V,
    /// `m`; a single 0 with `is_test`, when no gradient needs it.
    #[output]
    pub saved_mean: V,
    /// `1 / √(v + epsilon)`; a single 0 like `saved_mean`.
    #[output]
    pub saved_variance: V,
    /// Unused: has no elements.
    #[output]
    pub reserve_space: Option<V>,
    /// Decay of the running statistics: the part that is kept.
    #[attr(default = 0.9)]
    pub momentum: f32,
    /// Added to the variance, so that the divisor stays above 0.
    #[attr(default = 1e-5, min = 0.0)]
    pub epsilon: f32,
    /// Position of the channel dimension.
    #[attr(default = DataLayout::Nchw)]
    pub data_layout: DataLayout,
    /// Inference mode.
    #[attr(default = false)]
    pub is_test: bool,
    /// Use the running statistics even in training.
    #[attr(default = false)]
    pub use_global_stats: bool,
    /// Use the statistics of `x` even if `is_test`.
    #[attr(default = false)]
    pub trainable_statistics: bool,
}
impl Infer for BatchNormOp<Meta> {
    fn infer(&mut self) -> Result<()> {
        let vectors = [Some(&self.mean), Some(&self.variance), self.scale.as_ref(), self.bias.as_ref()];
        check_channels(&self.x, self.data_layout, vectors.into_iter().flatten())?;
        for saved in [&mut self.saved_mean, &mut self.saved_variance] {
            if self.is_test && !self.trainable_statistics {
                saved.set(self.mean.dtype, []);
            } else {
                saved.like(&self.mean);
            }
        }
        if let Some(space) = &mut self.reserve_space {
            space.set(self.x.dtype, [0]);
        }
        Ok(())
    }
}
impl Kernel for BatchNormOp<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let cut = NormTiling::channels(&self.x, self.data_layout);
        let (momentum, epsilon) = (f64::from(self.momentum), f64::from(self.epsilon));
        let (test, given) = self.modes();
        with_float!(self.x, T => {
            let x = self.x.slice::<T>()?;
            let (scale, bias) = (self.scale.slice::<T>()?, self.bias.slice()?);
            let mean_out = self.mean_out.inout::<T>(&self.mean)?.copied();
            let variance_out = self.variance_out.inout::<T>(&self.variance)?.copied();
            let saved_mean = self.saved_mean.slice_mut::<T>()?;
            let saved_variance = self.saved_variance.slice_mut::<T>()?;
            if test {
                saved_mean.fill(0.0);
                saved_variance.fill(0.0);
            } else {
                if given {
                    saved_mean.copy_from_slice(mean_out);
                    saved_variance.copy_from_slice(variance_out);
                } else {
                    cut.moments(cx, x, saved_mean, saved_variance)?;
                    if !x.is_empty() {
                        follow(mean_out, saved_mean, momentum);
                        follow(variance_out, saved_variance, momentum);
                    }
                }
                saved_variance.iter_mut().for_each(|v| *v = T::of(inverse(*v, epsilon)));
            }
            let (mean, r) = if test { (&*mean_out, &*variance_out) } else { (&*saved_mean, &*saved_variance) };
            let r = |group: usize| if test { inverse(r[group], epsilon) } else { wide(r[group]) };
            cut.write(cx, self.y.slice_mut::<T>()?, (0, cut.groups), |group, at, y| {
                let factor = T::of(r(group) * scale.map_or(1.0, |scale| wide(scale[group])));
                let (mean, bias) = (mean[group], bias.map_or(0.0, |bias| bias[group]));
                T::vectorised(Normalise { x: &x[at..], y, mean, factor, bias });
            });
            Ok(())
        })
    }
}

/// `y = (x - mean) * factor + bias`
struct Normalise<'a, T> {
    x: &'a [T],
    y: &'a mut [T],
    mean: T,
    factor: T,
    bias: T,
}
impl<T: KernelFloat> VectorLoops<T> for Normalise<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<F: LaneOf<T>>(self) {
        let [mean, factor, bias] = [self.mean, self.factor, self.bias].map(F::new);
        map_lanes([self.x], [self.y], |[x]: [F; 1], _| [(x - mean) * factor + bias]);
    }
}

impl<V> BatchNormOp<V> {
    /// Whether this is inference, and whether the running statistics are used.
    fn modes(&self) -> (bool, bool) {
        let test = self.is_test && !self.trainable_statistics;
        (test, test || self.use_global_stats)
    }
}
impl Composition for BatchNormOp<Expr> {
    fn compose(&mut self) {
        let (axis, over) = (self.data_layout.axis(), self.data_layout.but_channels(self.x.dims().len()));
        let (test, given) = self.modes();
        let [x, running_mean, running_variance] = [&self.x, &self.mean, &self.variance].map(widened);
        let (mean, variance) = match given {
            true => (running_mean.clone(), running_variance.clone()),
            false => moments(&x, &over, axis),
        };
        let factor = factor(&variance, self.epsilon);
        let normal = mul(&sub(&x, &mean, axis), &factor, axis);
        let [scale, bias] = [&self.scale, &self.bias].map(|x| x.as_ref().map(widened));
        self.y = in_dtype(&affine(normal, &scale, &bias, axis), self.x.dtype());
        let (momentum, dtype) = (f64::from(self.momentum), self.mean.dtype());
        let kept = |x: &Expr| in_dtype(x, dtype);
        let is_empty = self.x.dims().iter().any(|dim| *dim == 0);
        if is_empty {
            (self.mean_out, self.variance_out) = (self.mean.clone(), self.variance.clone());
        } else if !given {
            self.mean_out = kept(&(running_mean * momentum + &mean * (1.0 - momentum)));
            self.variance_out = kept(&(running_variance * momentum + &variance * (1.0 - momentum)));
        } else {
            (self.mean_out, self.variance_out) = (kept(&mean), kept(&variance));
        }
        let fill = |shape: Vec<i64>, dtype: DType| {
            let (value, str_value) = (0.0, String::new());
            self.x
                .builder()
                .emit(FillConstant { shape, dtype, value, str_value, ..FillConstant::of(New) })
                .out
        };
        (self.saved_mean, self.saved_variance) =
            if test { (fill(vec![], dtype), fill(vec![], dtype)) } else { (kept(&mean), kept(&factor)) };
        self.reserve_space = Some(fill(vec![0], self.x.dtype()));
    }
}
autobwd::samples!(
    BatchNormOp,
    [
        batch_norm(uniform([2, 3, 4]), 3),
        batch_norm(uniform([5, 3]), 3),
        BatchNormOp { momentum: 0.25, epsilon: 0.125, ..batch_norm(uniform([2, 3, 1, 4]), 3) },
        BatchNormOp { data_layout: DataLayout::Nhwc, ..batch_norm(uniform([2, 4, 3]), 3) },
        BatchNormOp { scale: None, reserve_space: Some(out()), ..batch_norm(uniform([2, 3, 4]), 3) },
        BatchNormOp { bias: None, ..batch_norm(uniform([1, 2, 3, 1, 2]), 2) },
        BatchNormOp { is_test: true, ..batch_norm(uniform([2, 3, 4]), 3) },
        BatchNormOp { is_test: true, scale: None, bias: None, ..batch_norm(uniform([4, 3]), 3) },
        BatchNormOp { is_test: true, trainable_statistics: true, ..batch_norm(uniform([2, 3, 4]), 3) },
        BatchNormOp { use_global_stats: true, ..batch_norm(uniform([2, 3, 4]), 3) },
        BatchNormOp {
            is_test: true,
            use_global_stats: true,
            trainable_statistics: true,
            data_layout: DataLayout::Nhwc,
            ..batch_norm(uniform([2, 4, 3]), 3)
        },
        batch_norm(uniform([70, 3, 2]), 3),
        BatchNormOp { data_layout: DataLayout::Nhwc, epsilon: 0.5, ..batch_norm(uniform([2, 70]), 70) },
        batch_norm(uniform([1, 3]), 3),
        batch_norm(uniform([0, 3, 2]), 3),
        batch_norm(uniform([2, 0, 3]), 0),
        batch_norm(uniform([2, 3, 0]), 3),
        BatchNormOp { mean: uniform([3]).of(DType::I64), ..batch_norm(uniform([2, 3]), 3) }
            .fails("`Mean`: dtype int64 does not match"),
        batch_norm(uniform([3]), 3).fails("`X`: two to five dimensions are needed"),
        batch_norm(uniform([1, 3, 1, 1, 1, 1]), 3).fails("`X`: two to five dimensions are needed"),
        batch_norm(uniform([2, 3, 4]), 4).fails("`Mean`: [3] is needed, a number for each channel"),
        BatchNormOp { scale: Some(uniform([3, 1])), ..batch_norm(uniform([2, 3, 4]), 3) }
            .fails("`Scale`: [3] is needed, a number for each channel"),
    ]
);

fn batch_norm(x: Draw, channels: usize) -> BatchNormOp<Draw> {
    BatchNormOp {
        x,
        scale: Some(away_from(0.0, [channels])),
        bias: Some(uniform([channels])),
        mean: uniform([channels]),
        // Has values of its own: a variable shared with a bias would make it negative.
        variance: given([channels], (1..=channels).map(|c| c as f64 / 2.0)),
        y: out(),
        mean_out: out(),
        variance_out: out(),
        saved_mean: out(),
        saved_variance: out(),
        reserve_space: None,
        momentum: 0.9,
        epsilon: 1e-5,
        data_layout: DataLayout::Nchw,
        is_test: false,
        use_global_stats: false,
        trainable_statistics: false,
    }
}

fn check_channels<'a>(
    x: &Meta,
    layout: DataLayout,
    vectors: impl IntoIterator<Item = &'a Meta>,
) -> Result<()> {
    x.float()?;
    x.require((2..=5).contains(&x.rank()), || "two to five dimensions are needed".into())?;
    let channels = x.dims[layout.channels(x.rank())];
    for vector in vectors {
        check_parameter_dtype(vector, x)?;
        let fits = vector.dims.agrees(&[channels]);
        vector.require(fits, || format!("[{channels}] is needed, a number for each channel"))?;
    }
    Ok(())
}

fn inverse<T: KernelFloat>(variance: T, epsilon: f64) -> f64 {
    1.0 / (wide(variance) + epsilon).sqrt()
}

/// `running = momentum * running + (1 - momentum) * new`.
fn follow<T: KernelFloat>(running: &mut [T], new: &[T], momentum: f64) {
    for (running, new) in running.iter_mut().zip(new) {
        *running = T::of(momentum * wide(*running) + (1.0 - momentum) * wide(*new));
    }
}

/// One gradient operator for `y`; gradients of statistics come from the composition.
#[derive(Debug)]
pub struct BatchNormRule;
impl GradRule<BatchNormOp> for BatchNormRule {
    fn emit(fwd: &BatchNormOp, g: &mut GradCx<'_>) {
        let BatchNormOp { x, scale, bias, mean, variance, y, mean_out, variance_out, .. } = *fwd;
        let (_, given) = fwd.modes();
        let of = BatchNormGrad {
            x,
            scale,
            bias,
            mean: given.then_some(mean),
            variance: given.then_some(variance),
            mean_out,
            variance_out,
            saved_mean: fwd.saved_mean,
            saved_variance: fwd.saved_variance,
            reserve_space: fwd.reserve_space,
            dy: g.grad(y),
            dx: g.wanted(x),
            dscale: scale.and_then(|scale| g.wanted(scale)),
            dbias: bias.and_then(|bias| g.wanted(bias)),
            epsilon: fwd.epsilon,
            data_layout: fwd.data_layout,
            is_test: fwd.is_test,
            use_global_stats: fwd.use_global_stats,
            trainable_statistics: fwd.trainable_statistics,
        };
        if given {
            [mean, variance].into_iter().for_each(|statistic| g.unchanged(statistic));
        }
        g.push(BatchNormGrad { ..of });
        let statistics = ["MeanOut", "VarianceOut", "SavedMean", "SavedVariance"];
        g.compose(&["Y"], &["Mean", "Variance"]);
        g.compose(&statistics, &["X", "Mean", "Variance"]);
    }
}

/// `dscale = Σ dy * n` and `dbias = Σ dy` over each channel, where `n = (x - m) / √(v + epsilon)`, and
/// `dx = scale * (dy - (dbias + n * dscale) / count) / √(v + epsilon)`, or `scale * dy / √(v + epsilon)` if `m` and `v`
/// are the running statistics.
///
/// The saved statistics are treated as functions of `x`.
#[register_op(grad_of = BatchNormOp, grad = Composed, infallible)]
pub struct BatchNormGrad<V = Var> {
    pub x: V,
    pub scale: Option<V>,
    #[input(shape_only)]
    pub bias: Option<V>,
    pub mean: Option<V>,
    pub variance: Option<V>,
    #[input(shape_only)]
    pub mean_out: V,
    #[input(shape_only)]
    pub variance_out: V,
    pub saved_mean: V,
    pub saved_variance: V,
    #[input(shape_only)]
    pub reserve_space: Option<V>,
    pub dy: V,
    #[output]
    pub dx: Option<V>,
    #[output]
    pub dscale: Option<V>,
    #[output]
    pub dbias: Option<V>,
    pub epsilon: f32,
    pub data_layout: DataLayout,
    pub is_test: bool,
    pub use_global_stats: bool,
    pub trainable_statistics: bool,
}
impl<V> BatchNormGrad<V> {
    /// Whether the running statistics are used.
    fn given(&self) -> bool {
        (self.is_test && !self.trainable_statistics) || self.use_global_stats
    }
}
impl Infer for BatchNormGrad<Meta> {
    fn infer(&mut self) -> Result<()> {
        let statistics = match (self.given(), &self.mean, &self.variance) {
            (true, Some(mean), Some(variance)) => [mean, variance],
            (true, ..) => {
                return Err(self.x.wrong("the running `Mean` and `Variance` are needed"));
            }
            (false, ..) => [&self.saved_mean, &self.saved_variance],
        };
        let others = [Some(&self.mean_out), self.scale.as_ref()];
        let vectors = statistics.into_iter().chain(others.into_iter().flatten());
        check_channels(&self.x, self.data_layout, vectors)?;
        self.dy.same_as(&self.x)?;
        self.dx.iter_mut().for_each(|dx| dx.like(&self.x));
        self.dscale.iter_mut().chain(&mut self.dbias).for_each(|grad| grad.like(&self.mean_out));
        Ok(())
    }
}
impl Kernel for BatchNormGrad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let cut = NormTiling::channels(&self.x, self.data_layout);
        let (epsilon, n, given) = (f64::from(self.epsilon), cut.terms() as f64, self.given());
        with_float!(self.x, T => {
            let (x, dy) = (self.x.slice::<T>()?, self.dy.slice::<T>()?);
            let scale = self.scale.slice::<T>()?;
            let (mean, r) = match (&self.mean, &self.variance) {
                (Some(mean), Some(variance)) if given => (mean, variance),
                _ => (&self.saved_mean, &self.saved_variance),
            };
            let (mean, r) = (mean.slice::<T>()?, r.slice::<T>()?);
            let r = |group: usize| if given { inverse(r[group], epsilon) } else { wide(r[group]) };
            let mut dx = self.dx.slice_mut::<T>()?;
            let mut dscale = self.dscale.slice_mut::<T>()?;
            let mut dbias = self.dbias.slice_mut::<T>()?;
            let term = |group: usize| {
                let mean = wide(mean[group]);
                move |x, dy| [x - mean, dy, dy * (x - mean)]
            };
            // The saved mean is rounded: its difference from the mean, and the sum of products of `dy` and `n`.
            let centred = |group: usize, [d, dy, products]: [f64; 3]| {
                let rest = if given { 0.0 } else { d / n };
                (rest, (products - rest * dy) * r(group))
            };
            cut.sums(cx, [x, dy], term, |first, sums| {
                if let Some(dbias) = &mut dbias {
                    dbias[first..].iter_mut().zip(sums).for_each(|(dbias, [_, dy, _])| *dbias = T::of(*dy));
                }
                if let Some(dscale) = &mut dscale {
                    for (i, (dscale, sums)) in dscale[first..].iter_mut().zip(sums).enumerate() {
                        *dscale = T::of(centred(first + i, *sums).1);
                    }
                }
                let Some(dx) = &mut dx else { return };
                cut.write(cx, dx, (first, sums.len()), |group, at, dx| {
                    let r = r(group);
                    let factor = T::of(r * scale.map_or(1.0, |scale| wide(scale[group])));
                    let sums = if given { [0.0; 3] } else { sums[group - first] };
                    let (rest, products) = centred(group, sums);
                    let slope = products * r / n;
                    let (mean, share, slope) = (mean[group], T::of(sums[1] / n - rest * slope), T::of(slope));
                    T::vectorised(Centre { x: &x[at..], dy: &dy[at..], dx, mean, share, slope, factor });
                });
            });
            Ok(())
        })
    }
}

/// `dx = (dy - share - (x - mean) * slope) * factor`
struct Centre<'a, T> {
    x: &'a [T],
    dy: &'a [T],
    dx: &'a mut [T],
    mean: T,
    share: T,
    slope: T,
    factor: T,
}
impl<T: KernelFloat> VectorLoops<T> for Centre<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<F: LaneOf<T>>(self) {
        let [mean, share, slope, factor] = [self.mean, self.share, self.slope, self.factor].map(F::new);
        map_lanes([self.x, self.dy], [self.dx], |[x, dy]: [F; 2], _| {
            [(dy - share - (x - mean) * slope) * factor]
        });
    }
}
impl Composition for BatchNormGrad<Expr> {
    fn compose(&mut self) {
        let (axis, over) = (self.data_layout.axis(), self.data_layout.but_channels(self.x.dims().len()));
        let given = self.given();
        let [x, dy] = [&self.x, &self.dy].map(widened);
        let (mean, variance) = match (&self.mean, &self.variance) {
            (Some(mean), Some(variance)) if given => (widened(mean), widened(variance)),
            _ => moments(&x, &over, axis),
        };
        let factor = factor(&variance, self.epsilon);
        let normal = mul(&sub(&x, &mean, axis), &factor, axis);
        let mut dx = affine(dy.clone(), &self.scale.as_ref().map(widened), &None, axis);
        if !given {
            let slope = decomposition::mean(&(&dx * &normal), &over, false);
            dx = sub(&dx, &decomposition::mean(&dx, &over, false), axis) - mul(&normal, &slope, axis);
        }
        self.dx = Some(in_dtype(&mul(&dx, &factor, axis), self.x.dtype()));
        let dtype = self.mean_out.dtype();
        self.dscale = Some(in_dtype(&(&dy * &normal).sum(&over), dtype));
        self.dbias = Some(in_dtype(&dy.sum(&over), dtype));
    }
}

/// A tensor in the dtype that kernels compute in.
fn widened(x: &Expr) -> Expr {
    in_dtype(x, x.dtype().arithmetic())
}

/// `1 / √(variance + epsilon)`
fn factor(variance: &Expr, epsilon: f32) -> Expr {
    (variance + f64::from(epsilon)).rsqrt()
}

/// Mean and variance over these axes.
fn moments(x: &Expr, over: &[i32], axis: i32) -> (Expr, Expr) {
    let mean = decomposition::mean(x, over, false);
    let variance = decomposition::mean(&sub(x, &mean, axis).square(), over, false);
    (mean, variance)
}
