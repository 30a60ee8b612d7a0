//! Kernels of the gradients of group and instance normalisation.

use autobwd::{Buf, Cx, Result};

use super::{DataLayout, tiling::NormTiling};
use crate::kernel_helpers::{KernelFloat, wide};

/// Sums of each channel of each sample.
const SUMS: usize = 3;

/// Bytes of scratch memory.
pub(super) fn scratch_bytes(x: &Buf<'_>, layout: DataLayout) -> usize {
    let channels = NormTiling::channels(x, layout);
    ChannelTiling::of(x, channels, layout).count().saturating_mul(SUMS * size_of::<f64>())
}

/// Channels of samples, in the order of samples: `blocks` of one access pattern.
#[derive(Clone, Copy)]
pub(super) struct ChannelTiling {
    blocks: usize,
    cut: NormTiling,
    channels: usize,
}

impl ChannelTiling {
    /// `by_channel` is the tiling of all samples together.
    pub(super) fn of(x: &Buf<'_>, by_channel: NormTiling, layout: DataLayout) -> ChannelTiling {
        let (samples, NormTiling { outer, groups, inner }) = (x.dims()[0], by_channel);
        let (blocks, cut) = match layout {
            DataLayout::Nchw => (1, NormTiling { outer: 1, groups: samples * groups, inner }),
            DataLayout::Nhwc => (samples, NormTiling { outer: outer / samples.max(1), groups, inner: 1 }),
        };
        ChannelTiling { blocks, cut, channels: groups }
    }

    fn count(&self) -> usize {
        self.blocks * self.cut.groups
    }

    /// Elements of a block.
    fn size(&self) -> usize {
        self.cut.outer * self.cut.groups * self.cut.inner
    }
}

/// The inputs of the gradients: groups of `width` channels of a sample have one mean and one factor of deviations.
pub(super) struct GroupGradient<'a, T, F> {
    pub(super) x: &'a [T],
    pub(super) dy: &'a [T],
    pub(super) scale: Option<&'a [T]>,
    pub(super) mean: &'a [T],
    pub(super) factor: F,
    pub(super) tiling: ChannelTiling,
    pub(super) width: usize,
}

impl<T: KernelFloat, F: Fn(usize) -> f64 + Sync> GroupGradient<'_, T, F> {
    pub(super) fn write(
        &self,
        cx: &Cx,
        dx: Option<&mut [T]>,
        dscale: Option<&mut [T]>,
        dbias: Option<&mut [T]>,
    ) -> Result<()> {
        cx.scratch(self.tiling.count() * SUMS, |sums: &mut [f64]| {
            let (sums, _) = sums.as_chunks_mut::<SUMS>();
            self.add_up(cx, sums);
            self.centre(sums);
            let of_channels = |grad: Option<&mut [T]>, term: &dyn Fn(usize) -> f64| {
                for (channel, grad) in grad.into_iter().flatten().enumerate() {
                    let of_samples = (channel..sums.len()).step_by(self.tiling.channels);
                    *grad = T::of(of_samples.fold(0.0, |sum, i| sum + term(i)));
                }
            };
            of_channels(dbias, &|i| sums[i][1]);
            of_channels(dscale, &|i| sums[i][2] * (self.factor)(i / self.width));
            if let Some(dx) = dx {
                self.share(sums);
                self.write_dx(cx, sums, dx);
            }
            Ok(())
        })
    }

    /// `Σ d`, `Σ dy` and `Σ dy * d` of the deviations `d = x - mean` of each channel of each sample.
    fn add_up(&self, cx: &Cx, all: &mut [[f64; SUMS]]) {
        let ChannelTiling { blocks, cut, .. } = self.tiling;
        for block in 0..blocks {
            let (first, start) = (block * cut.groups, block * self.tiling.size());
            let of_channel = |i: usize| {
                let mean = wide(self.mean[(first + i) / self.width]);
                move |x, dy| [x - mean, dy, dy * (x - mean)]
            };
            cut.sums(cx, [&self.x[start..], &self.dy[start..]], of_channel, |i, new| {
                all[first + i..][..new.len()].copy_from_slice(new)
            });
        }
    }

    /// Elements of a group; 1 for empty groups, since it is a divisor.
    fn terms(&self) -> f64 {
        (self.tiling.cut.outer * self.tiling.cut.inner * self.width).max(1) as f64
    }

    /// Replaces deviations from the rounded mean by deviations from the mean: `Σ d` becomes the difference of the means.
    fn centre(&self, sums: &mut [[f64; SUMS]]) {
        for group in sums.chunks_mut(self.width) {
            let rest = group.iter().fold(0.0, |sum, [d, ..]| sum + d) / self.terms();
            for [d, dy, products] in group {
                *d = rest;
                *products -= rest * *dy;
            }
        }
    }

    /// The first two sums become the coefficients `a` and `b` of `dx = (dy * scale - a - (x - mean) * b) * factor`.
    fn share(&self, sums: &mut [[f64; SUMS]]) {
        for (i, group) in sums.chunks_mut(self.width).enumerate() {
            let first = i * self.width % self.tiling.channels.max(1);
            let scale = |j: usize| self.scale.map_or(1.0, |scale| wide(scale[first + j]));
            let total =
                |k: usize| group.iter().enumerate().fold(0.0, |sum, (j, sums)| sum + scale(j) * sums[k]);
            let factor = (self.factor)(i);
            let slope = total(2) / self.terms() * factor * factor;
            let mean = total(1) / self.terms();
            for [rest, dy, _] in group {
                (*rest, *dy) = (mean - *rest * slope, slope);
            }
        }
    }

    fn write_dx(&self, cx: &Cx, sums: &[[f64; SUMS]], dx: &mut [T]) {
        let ChannelTiling { blocks, cut, channels } = self.tiling;
        for block in 0..blocks {
            let (first, start, size) = (block * cut.groups, block * self.tiling.size(), self.tiling.size());
            cut.write(cx, &mut dx[start..][..size], (0, cut.groups), |i, at, dx| {
                let i = first + i;
                let [share, slope, _] = sums[i].map(T::of);
                let (mean, factor) = (self.mean[i / self.width], T::of((self.factor)(i / self.width)));
                let scale = self.scale.map_or(T::of(1.0), |scale| scale[i % channels]);
                let (x, dy) = (&self.x[start + at..], &self.dy[start + at..]);
                for ((dx, x), dy) in dx.iter_mut().zip(x).zip(dy) {
                    *dx = (*dy * scale - share - (*x - mean) * slope) * factor;
                }
            });
        }
    }
}
