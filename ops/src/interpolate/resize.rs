//! Kernels of resizing.
//!
//! Rows are resized first, each row of the image at most once for all rows of the result that need it; columns are then
//! sums of whole rows.

use std::array;

use autobwd::{Cx, Result, tensor::Element};

use super::InterpAttrs;
use crate::kernel_helpers::{KernelFloat, PART, pieces};

/// Source positions along one axis.
#[derive(Clone, Copy)]
struct ResizeAxis {
    /// Elements of the image and of the result.
    x: usize,
    out: usize,
    ratio: f32,
    align_corners: bool,
    /// Positions refer to the centres of elements.
    centred: bool,
}

impl ResizeAxis {
    fn new(interp: &InterpAttrs, factor: Option<f32>, x: usize, out: usize) -> ResizeAxis {
        let ratio = match (out, interp.align_corners, factor) {
            (0 | 1, ..) => 0.0,
            (_, true, _) => x.saturating_sub(1) as f32 / (out - 1) as f32,
            (.., Some(factor)) => (1.0 / f64::from(factor)) as f32,
            _ => x as f32 / out as f32,
        };
        let align_corners = interp.align_corners;
        ResizeAxis { x, out, ratio, align_corners, centred: interp.align_mode == 0 && !align_corners }
    }

    /// The nearest element.
    #[inline(always)]
    fn nearest(&self, i: usize) -> usize {
        let at = self.ratio * i as f32;
        let at = if self.align_corners { (f64::from(at) + 0.5) as usize } else { at as usize };
        at.min(self.x - 1)
    }

    /// The element before the source position, and the weight of the element behind it.
    #[inline(always)]
    fn between(&self, i: usize) -> (usize, f32) {
        let at = match self.centred {
            true => (self.ratio * (i as f32 + 0.5) - 0.5).max(0.0),
            false => self.ratio * i as f32,
        };
        let first = (at as usize).min(self.x - 1);
        (first, at - first as f32)
    }

    /// The element behind another one.
    #[inline(always)]
    fn behind(&self, first: usize) -> usize {
        (first + 1).min(self.x - 1)
    }
}

/// Resizing of planes.
pub(super) struct Resize {
    down: ResizeAxis,
    across: ResizeAxis,
}

impl Resize {
    pub(super) fn new(
        interp: &InterpAttrs,
        factors: Option<[f32; 2]>,
        x: [usize; 2],
        out: [usize; 2],
    ) -> Resize {
        let axis =
            |axis: usize| ResizeAxis::new(interp, factors.map(|factors| factors[axis]), x[axis], out[axis]);
        let [down, across] = array::from_fn(axis);
        Resize { down, across }
    }

    /// Equal sizes: the result is the image, whatever `scale` is.
    pub(super) fn is_copy(&self) -> bool {
        self.down.x == self.down.out && self.across.x == self.across.out
    }

    /// Scratch elements: two rows of the result for each worker.
    pub(super) fn scratch(&self, workers: usize) -> usize {
        if self.is_copy() { 0 } else { self.across.out.saturating_mul(2 * workers) }
    }

    /// Elements of the rows of the result that are computed together.
    fn part(&self) -> usize {
        PART.div_ceil(self.across.out) * self.across.out
    }

    pub(super) fn nearest<T: Element>(&self, cx: &Cx, x: &[T], out: &mut [T]) {
        let (Resize { down, across }, part) = (self, self.part());
        cx.chunks_mut(out, part, |i, out| {
            let first = i * (part / across.out);
            let mut last = usize::MAX;
            for row in 0..out.len() / across.out {
                let (plane, k) = ((first + row) / down.out, (first + row) % down.out);
                let from = plane * down.x + down.nearest(k);
                if from == last {
                    out.copy_within((row - 1) * across.out..row * across.out, row * across.out);
                    continue;
                }
                last = from;
                let (x, out) =
                    (&x[from * across.x..][..across.x], &mut out[row * across.out..][..across.out]);
                match across.out / across.x {
                    2 if self.repeats(2) => repeat::<T, 2>(x, out),
                    4 if self.repeats(4) => repeat::<T, 4>(x, out),
                    8 if self.repeats(8) => repeat::<T, 8>(x, out),
                    _ => out.iter_mut().enumerate().for_each(|(i, out)| *out = x[across.nearest(i)]),
                }
            }
        });
    }

    /// Every element of a row is repeated that often.
    fn repeats(&self, times: usize) -> bool {
        let across = self.across;
        !across.align_corners && across.out == times * across.x && across.ratio * times as f32 == 1.0
    }

    pub(super) fn nearest_grad<T: KernelFloat>(
        &self,
        cx: &Cx,
        dout: &[T],
        rows: &mut [T],
        dx: &mut [T],
    ) -> Result<()> {
        let Resize { down, across } = self;
        self.each_plane(cx, dout, rows, dx, |dout, rows, dx| {
            let (mut at, sums) = (0, &mut rows[..across.out]);
            sums.fill(T::ZERO);
            for (k, dout) in dout.chunks_exact(across.out).enumerate() {
                let to = down.nearest(k);
                if to != at {
                    self.collect(sums, &mut dx[at * across.x..][..across.x]);
                    sums.fill(T::ZERO);
                    at = to;
                }
                sums.iter_mut().zip(dout).for_each(|(sum, dout)| *sum += *dout);
            }
            self.collect(sums, &mut dx[at * across.x..][..across.x]);
        })
    }

    /// Adds each element of a row of the result to the nearest one of the image.
    fn collect<T: KernelFloat>(&self, row: &[T], dx: &mut [T]) {
        let (mut at, mut sum) = (0, T::ZERO);
        for (i, row) in row.iter().enumerate() {
            let to = self.across.nearest(i);
            if to != at {
                dx[at] += sum;
                (at, sum) = (to, T::ZERO);
            }
            sum += *row;
        }
        dx[at] += sum;
    }

    pub(super) fn bilinear<T: KernelFloat>(
        &self,
        cx: &Cx,
        x: &[T],
        rows: &mut [T],
        out: &mut [T],
    ) -> Result<()> {
        let (Resize { down, across }, part) = (self, self.part());
        cx.try_chunks_mut(out, part, rows, |i, out, rows| {
            let first = i * (part / across.out);
            let (mut above, mut below) = rows.split_at_mut(across.out);
            let (mut held_above, mut held_below) = (usize::MAX, usize::MAX);
            for (row, out) in out.chunks_exact_mut(across.out).enumerate() {
                let (plane, k) = ((first + row) / down.out, (first + row) % down.out);
                let (y, weight) = down.between(k);
                let [from, behind] = [y, down.behind(y)].map(|y| plane * down.x + y);
                if from == held_below {
                    (above, below) = (below, above);
                    (held_above, held_below) = (held_below, held_above);
                }
                if from != held_above {
                    self.stretch(&x[from * across.x..][..across.x], above);
                    held_above = from;
                }
                if behind != from && behind != held_below {
                    self.stretch(&x[behind * across.x..][..across.x], below);
                    held_below = behind;
                }
                let (of_above, of_below) = (T::of((1.0 - weight).into()), T::of(weight.into()));
                let below = if behind == from { &*above } else { &below[..across.out] };
                for ((out, above), below) in out.iter_mut().zip(&*above).zip(below) {
                    *out = *above * of_above + *below * of_below;
                }
            }
            Ok(())
        })
    }

    /// Resizes one row.
    fn stretch<T: KernelFloat>(&self, x: &[T], out: &mut [T]) {
        for (i, out) in out[..self.across.out].iter_mut().enumerate() {
            let (first, weight) = self.across.between(i);
            *out =
                x[first] * T::of((1.0 - weight).into()) + x[self.across.behind(first)] * T::of(weight.into());
        }
    }

    pub(super) fn bilinear_grad<T: KernelFloat>(
        &self,
        cx: &Cx,
        dout: &[T],
        rows: &mut [T],
        dx: &mut [T],
    ) -> Result<()> {
        let Resize { down, across } = self;
        self.each_plane(cx, dout, rows, dx, |dout, rows, dx| {
            rows.fill(T::ZERO);
            let (mut above, mut below) = rows.split_at_mut(across.out);
            let mut at = 0;
            for (k, dout) in dout.chunks_exact(across.out).enumerate() {
                let (y, weight) = down.between(k);
                if y != at {
                    self.shrink(above, &mut dx[at * across.x..][..across.x]);
                    above.fill(T::ZERO);
                    let behind = down.behind(at);
                    (above, below) = (below, above);
                    if y != behind {
                        self.shrink(above, &mut dx[behind * across.x..][..across.x]);
                        above.fill(T::ZERO);
                    }
                    at = y;
                }
                let (of_above, of_below) = (T::of((1.0 - weight).into()), T::of(weight.into()));
                for ((above, below), dout) in above.iter_mut().zip(&mut below[..across.out]).zip(dout) {
                    *above += *dout * of_above;
                    *below += *dout * of_below;
                }
            }
            self.shrink(above, &mut dx[at * across.x..][..across.x]);
            self.shrink(below, &mut dx[down.behind(at) * across.x..][..across.x]);
        })
    }

    /// Adds a row of the result to a row of the image, with the weights of [`stretch`](Resize::stretch).
    fn shrink<T: KernelFloat>(&self, row: &[T], dx: &mut [T]) {
        let across = &self.across;
        let (mut at, mut first_sum, mut behind_sum) = (0, T::ZERO, T::ZERO);
        for (i, row) in row[..across.out].iter().enumerate() {
            let (first, weight) = across.between(i);
            if first != at {
                dx[at] += first_sum;
                if first == at + 1 {
                    first_sum = behind_sum;
                } else {
                    dx[across.behind(at)] += behind_sum;
                    first_sum = T::ZERO;
                }
                (at, behind_sum) = (first, T::ZERO);
            }
            first_sum += *row * T::of((1.0 - weight).into());
            behind_sum += *row * T::of(weight.into());
        }
        dx[at] += first_sum;
        dx[across.behind(at)] += behind_sum;
    }

    /// Calls `work(dout, rows, dx)` for each plane of a gradient, with `dx` filled with 0, and two rows of scratch
    /// memory.
    fn each_plane<T: KernelFloat>(
        &self,
        cx: &Cx,
        dout: &[T],
        rows: &mut [T],
        dx: &mut [T],
        work: impl Fn(&[T], &mut [T], &mut [T]) + Sync,
    ) -> Result<()> {
        let [x, out] = [self.down.x * self.across.x, self.down.out * self.across.out];
        let part = PART.div_ceil(x.max(out)) * x;
        cx.try_chunks_mut(dx, part, rows, |i, dx, rows| {
            dx.fill(T::ZERO);
            pieces(dx, i * part, x, usize::MAX, |plane, _, dx| {
                let rows = &mut rows[..2 * self.across.out];
                work(&dout[plane * out..][..out], rows, dx);
            });
            Ok(())
        })
    }
}

/// Repeats each element.
fn repeat<T: Element, const N: usize>(x: &[T], out: &mut [T]) {
    out.as_chunks_mut::<N>().0.iter_mut().zip(x).for_each(|(out, x)| *out = [*x; N]);
}
