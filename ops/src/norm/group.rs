//! Groups of neighbouring channels of each sample brought to mean 0 and variance 1.
//!
//! Gradients are composed: a group is a row.

use autobwd::{
    Buf, Cx, Dim, Dims, GradCx, GradRule, Infer, Kernel, Meta, Result, Var, check::*, register_op, with_float,
};

use super::{DataLayout, channels::Channels, cut::Cut, rows::Rows, rows::vector};
use crate::{
    common::{Real, held, pieces, wide},
    elementwise::{ElementwiseAddGrad, ElementwiseMul, ElementwiseMulGrad},
};

/// Groups of channels of each sample brought to mean 0 and variance 1: `y = scale * (x - mean) / √(variance + epsilon) +
/// bias`.
#[register_op(grad = GroupNormRule)]
pub struct GroupNorm<V = Var> {
    /// At least two dimensions: samples, channels, positions in the order of `data_layout`.
    #[input]
    pub x: V,
    /// Factors, one a channel; 1 where absent.
    #[input]
    pub scale: Option<V>,
    /// Summands, one a channel; 0 where absent.
    #[input]
    pub bias: Option<V>,
    /// Same shape as `x`.
    #[output]
    pub y: V,
    /// Mean of each group, `[samples, groups]`.
    #[output]
    pub mean: V,
    /// Variance of each group, same shape as `mean`.
    #[output]
    pub variance: V,
    /// Keeps the divisor above 0.
    #[attr(default = 1e-5, min = 0.0)]
    pub epsilon: f32,
    /// How many groups a sample has; it divides the number of channels.
    #[attr(min = 1)]
    pub groups: i32,
    /// Where the channels are.
    #[attr(default = DataLayout::Nchw)]
    pub data_layout: DataLayout,
}
impl Infer for GroupNorm<Meta> {
    fn infer(&mut self) -> Result<()> {
        let (x, groups) = (&self.x, self.groups as usize);
        let channels = channels(x, self.data_layout, [&self.scale, &self.bias])?;
        let divided = channels.get().is_none_or(|channels| channels.is_multiple_of(groups));
        x.require(divided, || format!("channels that {groups} groups divide are needed"))?;
        self.y.like(x);
        self.mean.set(x.dtype, Dims::from_iter([x.dims[0], groups.into()]));
        self.variance.like(&self.mean);
        Ok(())
    }
}
impl Kernel for GroupNorm<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let (groups, epsilon) = (self.groups as usize, f64::from(self.epsilon));
        let cut = Cut::channels(&self.x, self.data_layout);
        let (samples, channels) = (self.x.dims()[0], cut.groups);
        let width = channels / groups;
        // Of channels that come last, groups of one sample at a time have one pattern.
        let (cut, step) = match self.data_layout {
            DataLayout::Nchw => {
                (Cut { outer: 1, groups: samples * groups, inner: width * cut.inner }, cut.inner)
            }
            DataLayout::Nhwc => (Cut { outer: cut.outer / samples.max(1), groups, inner: width }, 1),
        };
        with_float!(self.x, T => {
            let affine = Affine::<T>::new(&self.scale, &self.bias, (groups, width, step))?;
            let (mean, variance) = (self.mean.slice_mut()?, self.variance.slice_mut()?);
            affine.normalise(cx, cut, self.x.slice()?, (mean, variance), epsilon, self.y.slice_mut()?);
            Ok(())
        })
    }
}
autobwd::samples!(
    GroupNorm,
    [
        group_norm(uniform([2, 6, 4]), 6, 3),
        group_norm(uniform([2, 4, 3, 1]), 4, 1),
        GroupNorm { data_layout: DataLayout::Nhwc, ..group_norm(uniform([2, 5, 6]), 6, 2) },
        GroupNorm { data_layout: DataLayout::Nhwc, ..group_norm(uniform([3, 8]), 8, 2) },
        GroupNorm { epsilon: 0.125, scale: None, ..group_norm(uniform([2, 4, 3]), 4, 4) },
        GroupNorm { bias: None, ..group_norm(uniform([3, 8]), 8, 2) },
        group_norm(uniform([0, 4, 3]), 4, 2),
        group_norm(uniform([2, 4, 0]), 4, 2),
        Sample::fails(group_norm(uniform([3]), 3, 1), "`X`: two dimensions or more are needed"),
        Sample::fails(group_norm(uniform([2, 4]), 4, 3), "`X`: channels that 3 groups divide are needed"),
        Sample::fails(group_norm(uniform([2, 4]), 4, 0), "attribute `groups`"),
        Sample::fails(
            group_norm(uniform([2, 4, 3]), 3, 2),
            "`Scale`: [4] is needed, a number for each channel"
        ),
    ]
);

fn group_norm(x: Draw, channels: usize, groups: i32) -> GroupNorm<Draw> {
    GroupNorm {
        x,
        scale: Some(away_from(0.0, [channels])),
        bias: Some(uniform([channels])),
        y: out(),
        mean: out(),
        variance: out(),
        epsilon: 1e-5,
        groups,
        data_layout: DataLayout::Nchw,
    }
}

/// How many channels there are; what has a number for each must fit.
fn channels(x: &Meta, layout: DataLayout, vectors: [&Option<Meta>; 2]) -> Result<Dim> {
    x.float()?;
    x.require(x.rank() >= 2, || "two dimensions or more are needed".into())?;
    let channels = x.dims[layout.channels(x.rank())];
    for vector in vectors.into_iter().flatten() {
        vector.same_dtype(x)?;
        let fits = vector.dims.agrees(&[channels]);
        vector.require(fits, || format!("[{channels}] is needed, a number for each channel"))?;
    }
    Ok(channels)
}

/// What becomes of normalised elements: groups of a sample have `width` channels, of `step` contiguous elements each.
struct Affine<'a, T> {
    scale: Option<&'a [T]>,
    bias: Option<&'a [T]>,
    groups: usize,
    width: usize,
    step: usize,
}

impl<'a, T: Real> Affine<'a, T> {
    fn new(
        scale: &'a Option<Buf<'_>>,
        bias: &'a Option<Buf<'_>>,
        (groups, width, step): (usize, usize, usize),
    ) -> Result<Affine<'a, T>> {
        let [scale, bias] = held([scale, bias])?;
        Ok(Affine { scale, bias, groups, width, step })
    }

    /// Fills mean, variance and `y`, in blocks of the size that `cut` says.
    fn normalise(
        &self,
        cx: &Cx,
        cut: Cut,
        x: &[T],
        (mean, variance): (&mut [T], &mut [T]),
        epsilon: f64,
        y: &mut [T],
    ) {
        let size = cut.outer * cut.groups * cut.inner;
        let blocks = mean.chunks_mut(cut.groups.max(1)).zip(variance.chunks_mut(cut.groups.max(1)));
        for (block, (mean, variance)) in blocks.enumerate() {
            let (x, y) = (&x[block * size..][..size], &mut y[block * size..][..size]);
            cut.moments(cx, x, mean, variance);
            let (mean, variance) = (&*mean, &*variance);
            cut.write(cx, y, (0, cut.groups), |group, at, y| {
                let (mean, r) = (mean[group], 1.0 / (wide(variance[group]) + epsilon).sqrt());
                let mut x = &x[at..];
                pieces(y, at % cut.inner, self.step, usize::MAX, |i, _, y| {
                    let channel = group % self.groups * self.width + i;
                    let factor = T::of(r * self.scale.map_or(1.0, |scale| wide(scale[channel])));
                    let bias = self.bias.map_or(T::of(0.0), |bias| bias[channel]);
                    y.iter_mut().zip(x).for_each(|(y, x)| *y = (*x - mean) * factor + bias);
                    x = &x[y.len()..];
                });
            });
        }
    }
}

/// The gradient of a row for `dx`; those of scale and bias are sums over the channels.
pub struct GroupNormRule;
impl GradRule<GroupNorm> for GroupNormRule {
    fn emit(fwd: &GroupNorm, g: &mut GradCx<'_>) {
        let GroupNorm { x, scale, bias, y, mean, variance, epsilon, groups, data_layout } = *fwd;
        let way = Rows::groups(groups, data_layout == DataLayout::Nhwc);
        let arriving = [mean, variance].map(|out| g.arrives(out).then(|| g.grad(out)));
        let [dmean, dvariance] = arriving.map(|dout| dout.map(|dout| vector(g, dout, 2)));
        let numbers = vector(g, mean, 2);
        let of = Normalised { x, scale, bias, y, epsilon, axis: data_layout.axis() };
        of.emit(g, &way, numbers, |c| {
            let any = dmean.is_some() || dvariance.is_some();
            any.then(|| c.statistics(dmean.into_iter().collect(), dvariance, None))
        });
    }
}

/// Each channel of each sample brought to mean 0 and variance 1: `y = scale * (x - m) / √(v + epsilon) + bias`, where `m`
/// and `v` are its mean and variance.
#[register_op(grad = InstanceNormRule)]
pub struct InstanceNorm<V = Var> {
    /// At least two dimensions: samples, channels, positions.
    #[input]
    pub x: V,
    /// Factors, one a channel; 1 where absent.
    #[input]
    pub scale: Option<V>,
    /// Summands, one a channel; 0 where absent.
    #[input]
    pub bias: Option<V>,
    /// Same shape as `x`.
    #[output]
    pub y: V,
    /// `m`, one for each channel of each sample, in one dimension.
    #[output]
    pub saved_mean: V,
    /// `1 / √(v + epsilon)`, same shape as `saved_mean`.
    #[output]
    pub saved_variance: V,
    /// Keeps the divisor above 0.
    #[attr(default = 1e-5, min = 0.0)]
    pub epsilon: f32,
}
impl Infer for InstanceNorm<Meta> {
    fn infer(&mut self) -> Result<()> {
        let x = &self.x;
        let channels = channels(x, DataLayout::Nchw, [&self.scale, &self.bias])?;
        self.y.like(x);
        self.saved_mean.set(x.dtype, Dims::from_iter([x.dims[0] * channels]));
        self.saved_variance.like(&self.saved_mean);
        Ok(())
    }
}
impl Kernel for InstanceNorm<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let Cut { outer, groups, inner } = Cut::channels(&self.x, DataLayout::Nchw);
        let cut = Cut { outer: 1, groups: outer * groups, inner };
        let epsilon = f64::from(self.epsilon);
        with_float!(self.x, T => {
            let affine = Affine::<T>::new(&self.scale, &self.bias, (groups, 1, inner))?;
            let (mean, variance) = (self.saved_mean.slice_mut()?, self.saved_variance.slice_mut()?);
            affine.normalise(cx, cut, self.x.slice()?, (mean, variance), epsilon, self.y.slice_mut()?);
            let saved = self.saved_variance.slice_mut::<T>()?.iter_mut();
            saved.for_each(|v| *v = T::of(1.0 / (wide(*v) + epsilon).sqrt()));
            Ok(())
        })
    }
}
autobwd::samples!(
    InstanceNorm,
    [
        instance_norm(uniform([2, 3, 4]), 3),
        instance_norm(uniform([1, 2, 3, 4]), 2),
        InstanceNorm { epsilon: 0.125, scale: None, ..instance_norm(uniform([2, 3, 4]), 3) },
        InstanceNorm { bias: None, ..instance_norm(uniform([2, 3, 5]), 3) },
        instance_norm(uniform([2, 3]), 3),
        instance_norm(uniform([0, 3, 4]), 3),
        instance_norm(uniform([2, 3, 0]), 3),
        Sample::fails(instance_norm(uniform([3]), 3), "`X`: two dimensions or more are needed"),
        Sample::fails(
            instance_norm(uniform([2, 3, 4]), 4),
            "`Scale`: [3] is needed, a number for each channel"
        ),
    ]
);

fn instance_norm(x: Draw, channels: usize) -> InstanceNorm<Draw> {
    let (scale, bias) = (Some(away_from(0.0, [channels])), Some(uniform([channels])));
    InstanceNorm { x, scale, bias, y: out(), saved_mean: out(), saved_variance: out(), epsilon: 1e-5 }
}

/// As that of `group_norm`: each channel is a group.
pub struct InstanceNormRule;
impl GradRule<InstanceNorm> for InstanceNormRule {
    fn emit(fwd: &InstanceNorm, g: &mut GradCx<'_>) {
        let InstanceNorm { x, scale, bias, y, saved_mean, saved_variance, epsilon } = *fwd;
        let [dm, dr] = [saved_mean, saved_variance].map(|out| g.arrives(out).then(|| g.grad(out)));
        let of = Normalised { x, scale, bias, y, epsilon, axis: 1 };
        of.emit(g, &Rows::after(2), saved_mean, |c| {
            let any = dm.is_some() || dr.is_some();
            any.then(|| c.statistics(dm.into_iter().collect(), None, dr))
        });
    }
}

/// What group and instance norm have in common.
struct Normalised {
    x: Var,
    scale: Option<Var>,
    bias: Option<Var>,
    y: Var,
    epsilon: f32,
    /// Where a vector of channels starts.
    axis: i32,
}

impl Normalised {
    /// `dx = (g - mean(g) - n * mean(g * n)) * r` in each row, where `g = dy * scale`, and what gradients of statistics add;
    /// `dscale = Σ dy * n`, `dbias = Σ dy`.
    fn emit(
        self,
        g: &mut GradCx<'_>,
        way: &Rows,
        numbers: Var,
        statistics: impl FnOnce(&mut Channels<'_, '_>) -> Option<Var>,
    ) {
        let Normalised { x, scale, bias, y, epsilon, axis } = self;
        let (dy, dx) = (g.grad(y), g.wanted(x));
        let [dscale, dbias] = [scale, bias].map(|input| input.and_then(|input| g.wanted(input)));
        if let (Some(bias), Some(_)) = (bias, dbias) {
            g.push(ElementwiseAddGrad { dout: dy, x, y: bias, dx: None, dy: dbias, axis });
        }
        let (rows, shapes) = way.of(g, x);
        let factored = scale.map_or(dy, |y| {
            let out = g.fresh("product");
            g.push(ElementwiseMul { x: dy, y, out, axis });
            out
        });
        let (factored, _) = way.of(g, factored);
        let mut c = Channels::rows(g, rows, numbers, epsilon);
        if let (Some(scale), Some(_)) = (scale, dscale) {
            let normal = way.back(c.g, c.normal, &shapes);
            c.g.push(ElementwiseMulGrad { dout: dy, x: normal, y: scale, dx: None, dy: dscale, axis });
        }
        if dx.is_some() {
            let terms = [c.project(None, factored)].into_iter().chain(statistics(&mut c)).collect();
            if let Some(total) = c.total(terms) {
                let total = way.back(c.g, total, &shapes);
                c.write(vec![total], dx);
            }
        }
    }
}
