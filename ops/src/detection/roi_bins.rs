//! The bins of boxes, each a weighted sum of elements of an image.

use autobwd::{Buf, Cx, Result, op::with_float};

use super::rois::Rois;
use crate::{
    kernel_helpers::{KernelFloat, PART, nth, pieces},
    windows::dims,
};

/// Which elements of an image a bin of a box consists of.
pub(super) trait BinRule: Sync {
    /// Whether each bin has channels of its own.
    const OWN_CHANNELS: bool;

    /// Calls `f(element, weight)` for bin `at` of a box, with the number of bins along each axis and the size of the image,
    /// vertical and horizontal.
    fn each(
        &self,
        corners: [f64; 4],
        at: [usize; 2],
        count: [usize; 2],
        size: [usize; 2],
        f: impl FnMut(usize, f64),
    );
}

/// The bins of `roi_align`.
pub(super) struct AlignedBins {
    pub(super) scale: f64,
    pub(super) ratio: i32,
    pub(super) aligned: bool,
}

/// Points in a bin along one axis: the number of all, and where those lie that are not far outside.
struct Points {
    count: f64,
    start: f64,
    step: f64,
    inside: std::ops::Range<usize>,
}

impl AlignedBins {
    fn points(&self, [low, high]: [f64; 2], at: usize, count: usize, size: usize) -> Points {
        let edge = if self.aligned { 0.5 } else { 0.0 };
        let (low, high) = (low * self.scale - edge, high * self.scale - edge);
        let length = if self.aligned { high - low } else { (high - low).max(1.0) };
        let bin = length / count as f64;
        let points = if self.ratio > 0 { f64::from(self.ratio) } else { bin.ceil().max(0.0) };
        let (start, step) = (low + at as f64 * bin, bin / points);
        // Large boxes have many points outside of the image, which are left out without being counted one by one.
        let inside = if step > 0.0 && start.is_finite() && step.is_finite() {
            let first = ((-1.0 - start) / step - 0.5).ceil().clamp(0.0, points);
            let end = ((size as f64 - start) / step - 0.5).floor() + 1.0;
            first as usize..end.clamp(0.0, points) as usize
        } else if step.is_finite() && start.is_finite() {
            0..points as usize
        } else {
            0..0
        };
        Points { count: points, start, step, inside }
    }
}

impl Points {
    /// Calls `f(element, weight)` for the elements around the points.
    fn each(&self, size: usize, mut f: impl FnMut(usize, f64)) {
        for i in self.inside.clone() {
            let at = self.start + (i as f64 + 0.5) * self.step;
            if !(-1.0..=size as f64).contains(&at) {
                continue;
            }
            let at = at.max(0.0);
            let first = at as usize;
            if first + 1 >= size {
                f(size - 1, 1.0);
            } else {
                let weight = at - first as f64;
                f(first, 1.0 - weight);
                f(first + 1, weight);
            }
        }
    }
}

impl BinRule for AlignedBins {
    const OWN_CHANNELS: bool = false;

    fn each(
        &self,
        [left, top, right, bottom]: [f64; 4],
        at: [usize; 2],
        count: [usize; 2],
        size: [usize; 2],
        mut f: impl FnMut(usize, f64),
    ) {
        let down = self.points([top, bottom], at[0], count[0], size[0]);
        let across = self.points([left, right], at[1], count[1], size[1]);
        let points = (down.count * across.count).max(1.0);
        down.each(size[0], |row, of_row| {
            across.each(size[1], |column, of_column| {
                f(row * size[1] + column, of_row * of_column / points);
            });
        });
    }
}

/// The bins of `psroi_pool`.
pub(super) struct MeanBins {
    pub(super) scale: f64,
}

impl BinRule for MeanBins {
    const OWN_CHANNELS: bool = true;

    fn each(
        &self,
        [left, top, right, bottom]: [f64; 4],
        at: [usize; 2],
        count: [usize; 2],
        size: [usize; 2],
        mut f: impl FnMut(usize, f64),
    ) {
        let range = |[low, high]: [f64; 2], axis: usize| {
            let (low, high) = (low.round() * self.scale, (high.round() + 1.0) * self.scale);
            let bin = (high - low).max(0.1) / count[axis] as f64;
            let bounds = [(at[axis] as f64 * bin + low).floor(), ((at[axis] + 1) as f64 * bin + low).ceil()];
            let [start, end] = bounds.map(|bound| bound.clamp(0.0, size[axis] as f64) as usize);
            start..end
        };
        let (rows, columns) = (range([top, bottom], 0), range([left, right], 1));
        let weight = 1.0 / (rows.len() * columns.len()).max(1) as f64;
        for row in rows {
            columns.clone().for_each(|column| f(row * size[1] + column, weight));
        }
    }
}

/// The bins of all boxes.
pub(super) struct Bins<'a> {
    rois: Rois<'a>,
    /// Height and width of images.
    size: [usize; 2],
    /// Channels of images, and of the result.
    channels: [usize; 2],
    /// Rows and columns of bins.
    count: [usize; 2],
}

impl<'a> Bins<'a> {
    pub(super) fn new(
        x: &Buf<'_>,
        (rois, numbers): (&'a Buf<'a>, Option<&'a Buf<'a>>),
        out: &Buf<'_>,
    ) -> Result<Self> {
        let ([_, channels, size @ ..], [_, results, count @ ..]) = (dims::<4>(x)?, dims::<4>(out)?);
        Ok(Bins { rois: Rois::new(rois, numbers)?, size, channels: [channels, results], count })
    }

    /// The channel of the image that a bin reads.
    fn channel<R: BinRule>(&self, channel: usize, bin: usize) -> usize {
        if R::OWN_CHANNELS { channel * self.count[0] * self.count[1] + bin } else { channel }
    }

    pub(super) fn forward<R: BinRule>(
        &self,
        cx: &Cx,
        x: &Buf<'_>,
        out: &mut Buf<'_>,
        rule: &R,
    ) -> Result<()> {
        let (pixels, bins) = (self.size[0] * self.size[1], self.count[0] * self.count[1]);
        with_float!(x, T => {
            let x = x.slice::<T>()?;
            cx.chunks_mut(out.slice_mut::<T>()?, PART, |part, out| {
                pieces(out, part * PART, bins, usize::MAX, |plane, first, out| {
                    let (roi, channel) = (plane / self.channels[1], plane % self.channels[1]);
                    let (image, corners) = (self.rois.image(roi), self.rois.corners(roi));
                    for (bin, out) in (first..).zip(out) {
                        let at = [bin / self.count[1], bin % self.count[1]];
                        let channel = self.channel::<R>(channel, bin);
                        let x = nth(x, image * self.channels[0] + channel, pixels);
                        let mut sum = 0.0;
                        rule.each(corners, at, self.count, self.size, |i, weight| sum += x[i] * T::of(weight));
                        *out = sum;
                    }
                });
            });
            Ok(())
        })
    }

    pub(super) fn backward<R: BinRule>(
        &self,
        cx: &Cx,
        dout: &Buf<'_>,
        dx: &mut Buf<'_>,
        rule: &R,
    ) -> Result<()> {
        let (pixels, bins) = (self.size[0] * self.size[1], self.count[0] * self.count[1]);
        with_float!(dout, T => {
            let dout = dout.slice::<T>()?;
            cx.chunks_mut(dx.slice_mut::<T>()?, PART.div_ceil(pixels) * pixels, |part, dx| {
                let first = part * PART.div_ceil(pixels);
                for (plane, dx) in (first..).zip(dx.chunks_exact_mut(pixels)) {
                    dx.fill(0.0);
                    let (image, from) = (plane / self.channels[0], plane % self.channels[0]);
                    let (channel, own) = match R::OWN_CHANNELS {
                        true => (from / bins, from % bins..from % bins + 1),
                        false => (from, 0..bins),
                    };
                    for roi in (0..self.rois.count()).filter(|roi| self.rois.image(*roi) == image) {
                        let (dout, corners) =
                            (nth(dout, roi * self.channels[1] + channel, bins), self.rois.corners(roi));
                        for bin in own.clone() {
                            let (at, dout) = ([bin / self.count[1], bin % self.count[1]], dout[bin]);
                            rule.each(corners, at, self.count, self.size, |i, weight| {
                                dx[i] += dout * T::of(weight);
                            });
                        }
                    }
                }
            });
            Ok(())
        })
    }
}
