//! Maps the windows of pooling to the elements under them.

use std::ops::Range;

use autobwd::{
    Buf, Cx, Dims, Meta, Result,
    op::{LaneOf, VectorLoops, fold_lanes},
};

use super::{
    PoolAttrs, PoolingType,
    axis_pooling::{AxisPooling, WindowRules},
};
use crate::{
    kernel_helpers::{KernelFloat, PART},
    norm::DataLayout,
    windows::{Windows, dims},
};

impl PoolAttrs {
    /// The windows, vertically and horizontally.
    pub(super) fn axes(&self) -> Result<[AxisPooling; 2]> {
        let PoolAttrs { ceil_mode, exclusive, global_pooling, adaptive, .. } = *self;
        let rules = WindowRules { ceil_mode, exclusive, global_pooling, adaptive };
        AxisPooling::all(&self.ksize, &self.strides, (&self.paddings, self.padding_algorithm), rules)
    }

    /// The windows over `input` rows (`i` is 0) or columns, unless pooling is adaptive.
    ///
    /// # Errors
    /// Invalid attributes.
    pub fn windows(&self, i: usize, input: usize) -> Result<Windows> {
        Ok(self.axes()?[i].windows(input))
    }

    /// The shape of the output.
    pub(super) fn pooled(&self, x: &Meta) -> Result<Dims> {
        x.float()?;
        let (images, channels, [height, width]) = self.data_format.split(x.unpack()?);
        let (zeros, [down, across]) =
            (self.pooling_type == PoolingType::Avg && !self.exclusive, self.axes()?);
        let size = [down.count(height, zeros, x)?, across.count(width, zeros, x)?];
        Ok(self.data_format.join(images, channels, size).into_iter().collect())
    }

    /// Returns an error for an output of another dtype or shape.
    pub(super) fn check(&self, x: &Meta, out: &Meta) -> Result<()> {
        let dims = self.pooled(x)?;
        out.same_dtype(x)?;
        out.require(out.dims.agrees(&dims), || format!("the shape of the output, {dims}, is needed"))
    }

    /// Parameters of the kernels.
    pub(super) fn pooling(&self, x: &Buf<'_>, out: &Buf<'_>) -> Result<Pooling> {
        let (_, channels, x) = self.data_format.split(dims(x)?);
        let (_, _, out) = self.data_format.split(dims(out)?);
        let lanes = if self.data_format == DataLayout::Nhwc { channels } else { 1 };
        let windows = [self.windows(0, x[0])?, self.windows(1, x[1])?];
        let pooling = Pooling { x, out, lanes, windows, adaptive: self.adaptive, exclusive: self.exclusive };
        Ok(if self.pooling_type == PoolingType::Max { pooling.joined() } else { pooling })
    }

    /// Scratch bytes of the second gradient: a plane of the output for each thread.
    pub(super) fn plane_bytes(&self, x: &Buf<'_>, out: &Buf<'_>, workers: usize) -> usize {
        self.pooling(x, out).map_or(0, |pooling| pooling.lens()[1] * workers * x.dtype().size())
    }

    /// Scratch bytes of the gradient: a plane of the output, and copied rows, for each thread.
    pub(super) fn gradient_bytes(&self, x: &Buf<'_>, out: &Buf<'_>, workers: usize) -> usize {
        let small = self.pooling(x, out).ok().and_then(|pooling| pooling.small_maxima(self.pooling_type));
        let copied = small.map_or(0, |rows| rows.scratch() * workers * x.dtype().size());
        self.plane_bytes(x, out, workers) + copied
    }
}

/// Pooling of planes: the pixels of a channel, or, with channels last, of an image with `lanes` channels.
pub(super) struct Pooling {
    pub(super) x: [usize; 2],
    pub(super) out: [usize; 2],
    pub(super) lanes: usize,
    pub(super) windows: [Windows; 2],
    pub(super) adaptive: bool,
    exclusive: bool,
}

/// Adjacent windows and the elements under them in one row of `x`: for the `k`-th window, `size` elements from
/// `x + k * stride` on.
pub(super) struct Strip {
    /// Offset of the first window in a plane of the output.
    at: usize,
    /// Number of windows.
    len: usize,
    x: usize,
    stride: usize,
    size: usize,
}

impl Strip {
    /// The windows.
    pub(super) fn out(&self) -> Range<usize> {
        self.at..self.at + self.len
    }

    /// The elements under the `k`-th window.
    pub(super) fn under(&self, k: usize) -> Range<usize> {
        let start = self.x + k * self.stride;
        start..start + self.size
    }

    /// Calls `f(under, out)` for every window, with a plane of `x` and a plane of the output.
    #[inline(always)]
    pub(super) fn gather<T: Copy>(&self, x: &[T], out: &mut [T], f: impl Fn(&[T], &mut T)) {
        let out = &mut out[self.out()];
        // Constant sizes let the compiler vectorise over windows.
        match (self.size, self.stride) {
            (1, 1) => out.iter_mut().zip(x[self.x..].as_chunks::<1>().0).for_each(|(out, x)| f(x, out)),
            (2, 2) => out.iter_mut().zip(x[self.x..].as_chunks::<2>().0).for_each(|(out, x)| f(x, out)),
            (3, 3) => out.iter_mut().zip(x[self.x..].as_chunks::<3>().0).for_each(|(out, x)| f(x, out)),
            _ => out.iter_mut().enumerate().for_each(|(k, out)| f(&x[self.under(k)], out)),
        }
    }

    /// Calls `f(under dx, under x, out, left)` for every window, with planes of `dx` and `x`, and two planes of the
    /// output.
    #[inline(always)]
    pub(super) fn scatter<T: Copy>(
        &self,
        (dx, x): (&mut [T], &[T]),
        (out, left): (&[T], &mut [T]),
        f: impl Fn(&mut [T], &[T], T, &mut T),
    ) {
        let out = out[self.out()].iter().zip(&mut left[self.out()]);
        match (self.size, self.stride) {
            (1, 1) => side_by_side::<T, 1>(&mut dx[self.x..], &x[self.x..], out, f),
            (2, 2) => side_by_side::<T, 2>(&mut dx[self.x..], &x[self.x..], out, f),
            (3, 3) => side_by_side::<T, 3>(&mut dx[self.x..], &x[self.x..], out, f),
            _ => out.enumerate().for_each(|(k, (out, left))| {
                f(&mut dx[self.under(k)], &x[self.under(k)], *out, left);
            }),
        }
    }
}

#[inline(always)]
fn side_by_side<'a, T: Copy + 'a, const N: usize>(
    dx: &mut [T],
    x: &[T],
    out: impl Iterator<Item = (&'a T, &'a mut T)>,
    f: impl Fn(&mut [T], &[T], T, &mut T),
) {
    let under = dx.as_chunks_mut::<N>().0.iter_mut().zip(x.as_chunks::<N>().0);
    under.zip(out).for_each(|((dx, x), (out, left))| f(dx, x, *out, left));
}

impl Pooling {
    /// One window over all pixels of a plane as a window over one row: its elements are in the same order.
    fn joined(self) -> Pooling {
        let covers = |i: usize| self.out[i] == 1 && self.span(i, 0).0 == (0..self.x[i]);
        if self.lanes > 1 || !covers(0) || !covers(1) {
            return self;
        }
        let len = self.x[0] * self.x[1];
        let windows = [1, len].map(|size| Windows { size, stride: 1, dilation: 1, before: 0, after: 0 });
        Pooling { x: [1, len], windows, adaptive: false, ..self }
    }

    /// The rows or columns under a window, and the divisor of its mean.
    fn span(&self, i: usize, window: usize) -> (Range<usize>, usize) {
        let (input, count, Windows { size, stride, before, .. }) = (self.x[i], self.out[i], self.windows[i]);
        if self.adaptive {
            let span = window * input / count..((window + 1) * input).div_ceil(count);
            return (span.clone(), span.len());
        }
        let start = window * stride;
        let span = start.saturating_sub(before)..(start + size).saturating_sub(before).min(input);
        let padded = size.min((input + 2 * before).saturating_sub(start)).max(1);
        let len = if self.exclusive { span.len() } else { padded };
        (span, len)
    }

    /// Calls `each` with strips that together cover all windows, row by row.
    pub(super) fn strips(&self, mut each: impl FnMut(Strip)) {
        let (width, Windows { size, stride, before, .. }) = (self.x[1], self.windows[1]);
        // Windows of full width.
        let whole = match self.lanes == 1 && !self.adaptive {
            true => {
                let end = (width + before).checked_sub(size).map_or(0, |way| way / stride + 1);
                let end = end.min(self.out[1]);
                before.div_ceil(stride).min(end)..end
            }
            false => 0..0,
        };
        for row in 0..self.out[0] {
            for y in self.span(0, row).0 {
                for col in (0..whole.start).chain(whole.end..self.out[1]) {
                    self.strips_of((row, col), y, &mut each);
                }
                if !whole.is_empty() {
                    let x = y * width + whole.start * stride - before;
                    each(Strip { at: row * self.out[1] + whole.start, len: whole.len(), x, stride, size });
                }
            }
        }
    }

    /// The strips of one window and one row of `x`: of one channel, or pixel by pixel.
    fn strips_of(&self, (row, col): (usize, usize), y: usize, each: &mut impl FnMut(Strip)) {
        let (cols, at) = (self.span(1, col).0, (row * self.out[1] + col) * self.lanes);
        if self.lanes > 1 {
            for col in cols {
                each(Strip {
                    at,
                    len: self.lanes,
                    x: (y * self.x[1] + col) * self.lanes,
                    stride: 1,
                    size: 1,
                });
            }
        } else if !cols.is_empty() {
            each(Strip { at, len: 1, x: y * self.x[1] + cols.start, stride: 1, size: cols.len() });
        }
    }

    /// Divides every element of a plane of the output by the divisor of its mean.
    pub(super) fn divide<T: KernelFloat>(&self, out: &mut [T]) {
        for (row, out) in out.chunks_mut(self.out[1] * self.lanes).enumerate() {
            for (col, out) in out.chunks_mut(self.lanes).enumerate() {
                let count = T::of((self.span(0, row).1 * self.span(1, col).1) as f64);
                out.iter_mut().for_each(|out| *out = *out / count);
            }
        }
    }

    /// Number of elements of a plane of `x`, and of the output.
    pub(super) fn lens(&self) -> [usize; 2] {
        [self.x, self.out].map(|[height, width]| height * width * self.lanes)
    }

    /// Calls `work(plane, elements, scratch)` for every plane of `planes`, of `len` elements each, with `scratch`
    /// elements of scratch memory.
    pub(super) fn each_plane<T: KernelFloat>(
        &self,
        cx: &Cx,
        (planes, len): (&mut [T], usize),
        scratch: usize,
        work: impl Fn(usize, &mut [T], &mut [T]) + Sync,
    ) -> Result<()> {
        let share = PART.div_ceil(self.lens()[0].max(1));
        cx.scratch(scratch * cx.threads(), |scratch| {
            cx.try_chunks_mut(planes, share * len, scratch, |part, planes, scratch| {
                for (i, plane) in planes.chunks_mut(len).enumerate() {
                    work(part * share + i, plane, scratch);
                }
                Ok(())
            })
        })
    }
}

/// Elements of a row of a window from which on maxima are computed several elements at a time.
const LONG: usize = 32;

/// The largest of `most` and the elements: NaN counts as the largest number, and the first of equal elements is taken.
#[inline(always)]
pub(super) fn largest<T: KernelFloat>(x: &[T], most: T) -> T {
    if x.len() >= LONG {
        let largest = T::vectorised(Largest { x, most });
        // Zeros of both signs are equal, and NaN of any bits are NaN.
        if largest != T::ZERO && !largest.is_nan() {
            return largest;
        }
    }
    x.iter().fold(most, |most, x| if *x > most || x.is_nan() { *x } else { most })
}

struct Largest<'a, T> {
    x: &'a [T],
    most: T,
}
impl<T: KernelFloat> VectorLoops<T> for Largest<'_, T> {
    type Output = T;

    #[inline(always)]
    fn run<F: LaneOf<T>>(self) -> T {
        let larger = |a: F, b: F| F::select(b.gt(a), b, F::select(b.equals(b), a, b));
        fold_lanes([self.x], F::new(self.most), |most, [x]: [F; 1]| larger(most, x), larger).get()
    }
}
