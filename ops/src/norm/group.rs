//! Group and instance normalisation.

use autobwd::{
    Buf, Composed, Composition, Cx, Dims, Expr, Infer, Kernel, Meta, Result, Var,
    check::*,
    op::with_float,
    register_op,
    tensor::{Dim, OptionalBuf},
};

use super::{
    DataLayout, check_parameter_dtype,
    decomposition::{NormRows, Reshaped, affine, mean},
    group_gradient::{ChannelTiling, GroupGradient, scratch_bytes},
    tiling::NormTiling,
};
use crate::{
    Math,
    kernel_helpers::{KernelFloat, pieces, wide},
    math::in_dtype,
};

/// Group normalisation of each sample: `y = scale * (x - mean) / √(variance + epsilon) + bias`.
#[register_op(grad = GroupNormGrad, infallible)]
pub struct GroupNormOp<V = Var> {
    /// At least two dimensions: samples, channels, positions in the order of `data_layout`.
    #[input]
    pub x: V,
    /// Scale, one for each channel; 1 if absent.
    #[input]
    pub scale: Option<V>,
    /// Bias, one for each channel; 0 if absent.
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
    /// Added to the variance, so that the divisor stays above 0.
    #[attr(default = 1e-5, min = 0.0)]
    pub epsilon: f32,
    /// Number of groups of a sample; it divides the number of channels.
    #[attr(min = 1)]
    pub groups: i32,
    /// Position of the channel dimension.
    #[attr(default = DataLayout::Nchw)]
    pub data_layout: DataLayout,
}
impl Infer for GroupNormOp<Meta> {
    fn infer(&mut self) -> Result<()> {
        let (x, groups) = (&self.x, self.groups as usize);
        let channels = channels(x, self.data_layout, [&self.scale, &self.bias], Meta::same_dtype)?;
        let divided = channels.get().is_none_or(|channels| channels.is_multiple_of(groups));
        x.require(divided, || format!("a number of channels divisible by {groups} groups is needed"))?;
        self.y.like(x);
        self.mean.set(x.dtype, Dims::from_iter([x.dims[0], groups.into()]));
        self.variance.like(&self.mean);
        Ok(())
    }
}
impl Kernel for GroupNormOp<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let (groups, epsilon) = (self.groups as usize, f64::from(self.epsilon));
        let cut = NormTiling::channels(&self.x, self.data_layout);
        let (samples, channels) = (self.x.dims()[0], cut.groups);
        let width = channels / groups;
        // With channels last, the groups of one sample have one access pattern.
        let (cut, step) = match self.data_layout {
            DataLayout::Nchw => {
                (NormTiling { outer: 1, groups: samples * groups, inner: width * cut.inner }, cut.inner)
            }
            DataLayout::Nhwc => (NormTiling { outer: cut.outer / samples.max(1), groups, inner: width }, 1),
        };
        with_float!(self.x, T => {
            let affine = AffineKernel::<T>::new(&self.scale, &self.bias, (groups, width, step))?;
            let (mean, variance) = (self.mean.slice_mut()?, self.variance.slice_mut()?);
            affine.normalise(cx, cut, self.x.slice()?, (mean, variance), epsilon, self.y.slice_mut()?)
        })
    }
}
impl Composition for GroupNormOp<Expr> {
    fn compose(&mut self) {
        let rank = self.x.dims().len() as i32;
        let channels_first: Vec<i32> = [0, rank - 1].into_iter().chain(1..rank - 1).collect();
        let channels_last: Vec<i32> = [0].into_iter().chain(2..rank).chain([1]).collect();
        let is_last = self.data_layout == DataLayout::Nhwc;
        let x = if is_last { self.x.transpose(&channels_first) } else { self.x.clone() };
        let groups = Reshaped::new(&x, vec![0, self.groups, -1]);
        let rows = NormRows::of(&groups.x, self.epsilon);
        let y = affine(groups.restore(&rows.normal), &self.scale, &self.bias, 1);
        self.y = if is_last { y.transpose(&channels_last) } else { y };
        (self.mean, self.variance) = (rows.mean.squeeze(&[-1]), rows.variance.squeeze(&[-1]));
    }
}
autobwd::samples!(
    GroupNormOp,
    [
        group_norm(uniform([2, 6, 4]), 6, 3),
        group_norm(uniform([2, 4, 3, 1]), 4, 1),
        GroupNormOp { data_layout: DataLayout::Nhwc, ..group_norm(uniform([2, 5, 6]), 6, 2) },
        GroupNormOp { data_layout: DataLayout::Nhwc, ..group_norm(uniform([3, 8]), 8, 2) },
        GroupNormOp { epsilon: 0.125, scale: None, ..group_norm(uniform([2, 4, 3]), 4, 4) },
        GroupNormOp { bias: None, ..group_norm(uniform([3, 8]), 8, 2) },
        group_norm(uniform([0, 4, 3]), 4, 2),
        group_norm(uniform([2, 4, 0]), 4, 2),
        group_norm(uniform([3]), 3, 1).fails("`X`: two dimensions or more are needed"),
        group_norm(uniform([2, 4]), 4, 3).fails("`X`: a number of channels divisible by 3 groups is needed"),
        group_norm(uniform([2, 4]), 4, 0).fails("attribute `groups`"),
        group_norm(uniform([2, 4, 3]), 3, 2).fails("`Scale`: [4] is needed, a number for each channel"),
    ]
);

fn group_norm(x: Draw, channels: usize, groups: i32) -> GroupNormOp<Draw> {
    GroupNormOp {
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

/// `dx = (g - mean(g) - n * mean(g * n)) / √(variance + epsilon)` in each group, `dscale = Σ dy * n` and `dbias = Σ dy`
/// over samples and positions, where `n = (x - mean) / √(variance + epsilon)` and `g = dy * scale`.
///
/// Mean and variance are treated as functions of `x`.
#[register_op(grad_of = GroupNormOp, grad = Composed, inferred, infallible)]
pub struct GroupNormGrad<V = Var> {
    pub x: V,
    pub scale: Option<V>,
    #[input(shape_only)]
    pub bias: Option<V>,
    #[input(shape_only)]
    pub y: V,
    pub mean: V,
    pub variance: V,
    pub dy: V,
    #[output]
    pub dx: Option<V>,
    #[output]
    pub dscale: Option<V>,
    #[output]
    pub dbias: Option<V>,
    pub epsilon: f32,
    pub groups: i32,
    pub data_layout: DataLayout,
}
impl Kernel for GroupNormGrad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let (channels, epsilon) = (NormTiling::channels(&self.x, self.data_layout), f64::from(self.epsilon));
        with_float!(self.x, T => {
            let variance = self.variance.slice::<T>()?;
            let of = GroupGradient {
                x: self.x.slice::<T>()?,
                dy: self.dy.slice()?,
                scale: self.scale.slice()?,
                mean: self.mean.slice()?,
                factor: |group: usize| 1.0 / (wide(variance[group]) + epsilon).sqrt(),
                tiling: ChannelTiling::of(&self.x, channels, self.data_layout),
                // Without channels, there is nothing to divide.
                width: (channels.groups / self.groups as usize).max(1),
            };
            of.write(cx, self.dx.slice_mut()?, self.dscale.slice_mut()?, self.dbias.slice_mut()?)
        })
    }

    fn scratch_bytes(&self, _: usize) -> usize {
        scratch_bytes(&self.x, self.data_layout)
    }
}

/// Returns the number of channels; checks that parameters have one element for each, of a dtype that fits `x`.
fn channels(
    x: &Meta,
    layout: DataLayout,
    vectors: [&Option<Meta>; 2],
    check_dtype: fn(&Meta, &Meta) -> Result<()>,
) -> Result<Dim> {
    x.float()?;
    x.require(x.rank() >= 2, || "two dimensions or more are needed".into())?;
    let channels = x.dims[layout.channels(x.rank())];
    for vector in vectors.into_iter().flatten() {
        check_dtype(vector, x)?;
        let fits = vector.dims.agrees(&[channels]);
        vector.require(fits, || format!("[{channels}] is needed, a number for each channel"))?;
    }
    Ok(channels)
}

/// The affine part: groups of a sample have `width` channels of `step` contiguous elements each.
struct AffineKernel<'a, T> {
    scale: Option<&'a [T]>,
    bias: Option<&'a [T]>,
    groups: usize,
    width: usize,
    step: usize,
}

impl<'a, T: KernelFloat> AffineKernel<'a, T> {
    fn new(
        scale: &'a Option<Buf<'_>>,
        bias: &'a Option<Buf<'_>>,
        (groups, width, step): (usize, usize, usize),
    ) -> Result<AffineKernel<'a, T>> {
        let (scale, bias) = (scale.slice()?, bias.slice()?);
        Ok(AffineKernel { scale, bias, groups, width, step })
    }

    /// Computes mean, variance and `y`, in tiles of the size that `cut` says.
    fn normalise(
        &self,
        cx: &Cx,
        cut: NormTiling,
        x: &[T],
        (mean, variance): (&mut [T], &mut [T]),
        epsilon: f64,
        y: &mut [T],
    ) -> Result<()> {
        let size = cut.outer * cut.groups * cut.inner;
        let blocks = mean.chunks_mut(cut.groups.max(1)).zip(variance.chunks_mut(cut.groups.max(1)));
        for (block, (mean, variance)) in blocks.enumerate() {
            let (x, y) = (&x[block * size..][..size], &mut y[block * size..][..size]);
            cut.moments(cx, x, mean, variance)?;
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
        Ok(())
    }
}

/// Instance normalisation of each channel of each sample: `y = scale * (x - m) / √(v + epsilon) + bias`, with its mean
/// `m` and variance `v`.
#[register_op(grad = InstanceNormGrad, infallible)]
pub struct InstanceNormOp<V = Var> {
    /// At least two dimensions: samples, channels, positions. If it has 16 bits, scale and bias may both be float32.
    #[input]
    pub x: V,
    /// Scale, one for each channel; 1 if absent.
    #[input]
    pub scale: Option<V>,
    /// Bias, one for each channel; 0 if absent.
    #[input]
    pub bias: Option<V>,
    /// Same shape as `x`.
    #[output]
    pub y: V,
    /// `m`, one for each channel of each sample, in one dimension; dtype of scale and bias, or of `x` without them.
    #[output]
    pub saved_mean: V,
    /// `1 / √(v + epsilon)`, same shape and dtype as `saved_mean`.
    #[output]
    pub saved_variance: V,
    /// Added to the variance, so that the divisor stays above 0.
    #[attr(default = 1e-5, min = 0.0)]
    pub epsilon: f32,
}
impl Infer for InstanceNormOp<Meta> {
    fn infer(&mut self) -> Result<()> {
        let x = &self.x;
        let channels = channels(x, DataLayout::Nchw, [&self.scale, &self.bias], check_parameter_dtype)?;
        if let (Some(scale), Some(bias)) = (&self.scale, &self.bias) {
            bias.same_dtype(scale)?;
        }
        self.y.like(x);
        let parameter = self.scale.as_ref().or(self.bias.as_ref()).unwrap_or(x);
        self.saved_mean.set(parameter.dtype, Dims::from_iter([x.dims[0] * channels]));
        self.saved_variance.like(&self.saved_mean);
        Ok(())
    }
}
impl Kernel for InstanceNormOp<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let NormTiling { outer, groups, inner } = NormTiling::channels(&self.x, DataLayout::Nchw);
        let cut = NormTiling { outer: 1, groups: outer * groups, inner };
        let epsilon = f64::from(self.epsilon);
        with_float!(self.x, T => {
            let affine = AffineKernel::<T>::new(&self.scale, &self.bias, (groups, 1, inner))?;
            let (mean, variance) = (self.saved_mean.slice_mut()?, self.saved_variance.slice_mut()?);
            affine.normalise(cx, cut, self.x.slice()?, (mean, variance), epsilon, self.y.slice_mut()?)?;
            let saved = self.saved_variance.slice_mut::<T>()?.iter_mut();
            saved.for_each(|v| *v = T::of(1.0 / (wide(*v) + epsilon).sqrt()));
            Ok(())
        })
    }
}
impl Composition for InstanceNormOp<Expr> {
    fn compose(&mut self) {
        let dtype = self.scale.as_ref().or(self.bias.as_ref()).unwrap_or(&self.x).dtype();
        let channels = Reshaped::new(&in_dtype(&self.x, dtype), vec![0, 0, -1]);
        let rows = NormRows::of(&channels.x, self.epsilon);
        let y = affine(channels.restore(&rows.normal), &self.scale, &self.bias, 1);
        self.y = in_dtype(&y, self.x.dtype());
        (self.saved_mean, self.saved_variance) = (rows.mean.flatten(0, -1), rows.factor.flatten(0, -1));
    }
}
autobwd::samples!(
    InstanceNormOp,
    [
        instance_norm(uniform([2, 3, 4]), 3),
        instance_norm(uniform([1, 2, 3, 4]), 2),
        InstanceNormOp { epsilon: 0.125, scale: None, ..instance_norm(uniform([2, 3, 4]), 3) },
        InstanceNormOp { bias: None, ..instance_norm(uniform([2, 3, 5]), 3) },
        instance_norm(uniform([2, 3]), 3),
        instance_norm(uniform([0, 3, 4]), 3),
        instance_norm(uniform([2, 3, 0]), 3),
        instance_norm(uniform([3]), 3).fails("`X`: two dimensions or more are needed"),
        instance_norm(uniform([2, 3, 4]), 4).fails("`Scale`: [3] is needed, a number for each channel"),
    ]
);

fn instance_norm(x: Draw, channels: usize) -> InstanceNormOp<Draw> {
    let (scale, bias) = (Some(away_from(0.0, [channels])), Some(uniform([channels])));
    InstanceNormOp { x, scale, bias, y: out(), saved_mean: out(), saved_variance: out(), epsilon: 1e-5 }
}

/// `dx = (g - mean(g) - n * mean(g * n)) / √(v + epsilon)` in each channel of each sample, `dscale = Σ dy * n` and
/// `dbias = Σ dy` over samples and positions, where `n = (x - m) / √(v + epsilon)` and `g = dy * scale`.
///
/// The saved statistics are treated as functions of `x`.
#[register_op(grad_of = InstanceNormOp, grad = Composed, infallible)]
pub struct InstanceNormGrad<V = Var> {
    pub x: V,
    pub scale: Option<V>,
    pub saved_mean: V,
    pub saved_variance: V,
    pub dy: V,
    #[output]
    pub dx: Option<V>,
    #[output]
    pub dscale: Option<V>,
    #[output]
    pub dbias: Option<V>,
    pub epsilon: f32,
}
impl Infer for InstanceNormGrad<Meta> {
    fn infer(&mut self) -> Result<()> {
        let x = &self.x;
        let channels = channels(x, DataLayout::Nchw, [&self.scale, &None], check_parameter_dtype)?;
        self.dy.same_as(x)?;
        for saved in [&self.saved_mean, &self.saved_variance] {
            check_parameter_dtype(saved, x)?;
            let count = x.dims[0] * channels;
            saved.require(saved.dims.agrees(&[count]), || {
                format!("[{count}] is needed, a number for each channel of each sample")
            })?;
        }
        self.dx.iter_mut().for_each(|dx| dx.like(x));
        self.dscale
            .iter_mut()
            .chain(&mut self.dbias)
            .for_each(|grad| grad.set(self.saved_mean.dtype, Dims::from_iter([channels])));
        Ok(())
    }
}
impl Kernel for InstanceNormGrad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let channels = NormTiling::channels(&self.x, DataLayout::Nchw);
        with_float!(self.x, T => {
            let factor = self.saved_variance.slice::<T>()?;
            let of = GroupGradient {
                x: self.x.slice::<T>()?,
                dy: self.dy.slice()?,
                scale: self.scale.slice()?,
                mean: self.saved_mean.slice()?,
                factor: |group: usize| wide(factor[group]),
                tiling: ChannelTiling::of(&self.x, channels, DataLayout::Nchw),
                width: 1,
            };
            of.write(cx, self.dx.slice_mut()?, self.dscale.slice_mut()?, self.dbias.slice_mut()?)
        })
    }

    fn scratch_bytes(&self, _: usize) -> usize {
        scratch_bytes(&self.x, DataLayout::Nchw)
    }
}
impl Composition for InstanceNormGrad<Expr> {
    fn compose(&mut self) {
        let dtype = self.saved_mean.dtype();
        let channels = Reshaped::new(&in_dtype(&self.x, dtype), vec![0, 0, -1]);
        let NormRows { factor, normal, .. } = NormRows::of(&channels.x, self.epsilon);
        let dy = Reshaped::new(&in_dtype(&self.dy, dtype), vec![0, 0, -1]).x;
        let g = affine(dy.clone(), &self.scale, &None, 1);
        let slope = mean(&(&g * &normal), &[-1], true);
        let dx = (&g - mean(&g, &[-1], true) - &normal * slope) * factor;
        self.dx = Some(in_dtype(&channels.restore(&dx), self.x.dtype()));
        self.dscale = Some((&dy * &normal).sum(&[0, 2]));
        self.dbias = Some(dy.sum(&[0, 2]));
    }
}
