//! Max pooling with 2 × 2 windows and stride 2 on planes of even size, several windows at a time.

use std::array::from_fn;

use super::pooling::Pooling;
use crate::{kernel_helpers::KernelFloat, windows::Windows};

impl Pooling {
    /// Whether this special case applies.
    pub(super) fn halves(&self) -> bool {
        let half = |i: usize| {
            let Windows { size, stride, before, .. } = self.windows[i];
            (size, stride, before) == (2, 2, 0) && self.x[i] == 2 * self.out[i]
        };
        self.lanes == 1 && !self.adaptive && half(0) && half(1)
    }

    /// The forward pass of a plane.
    pub(super) fn maxima<T: KernelFloat>(&self, x: &[T], out: &mut [T]) {
        let larger = |a: T, b: T| if b > a || b.is_nan() { b } else { a };
        let (width, half) = (self.x[1], self.out[1]);
        for (x, out) in x.chunks_exact(2 * width).zip(out.chunks_exact_mut(half)) {
            let (top, bottom) = x.split_at(width);
            if half.is_multiple_of(4) {
                let x = top.as_chunks().0.iter().zip(bottom.as_chunks().0);
                for ((top, bottom), out) in x.zip(out.as_chunks_mut().0) {
                    let others = [odds(top), evens(bottom), odds(bottom)];
                    *out = others.iter().fold(evens(top), |most, x| from_fn(|k| larger(most[k], x[k])));
                }
                continue;
            }
            let x = top.as_chunks().0.iter().zip(bottom.as_chunks().0);
            for (([a, b], [c, d]), out) in x.zip(out) {
                *out = larger(larger(larger(*a, *b), *c), *d);
            }
        }
    }

    /// The gradient of a plane: `dout` at the first maximum of each window, 0 elsewhere. A NaN maximum equals no
    /// element, so its gradient is dropped.
    pub(super) fn to_maxima<T: KernelFloat>(&self, dx: &mut [T], x: &[T], out: &[T], dout: &[T]) {
        match self.out[1].is_multiple_of(4) {
            true => to_maxima_by_fours(self.x[1], dx, x, out, dout),
            false => to_maxima_one_by_one(self.x[1], dx, x, out, dout),
        }
    }
}

/// Four elements as a vector. Operations are written out, since loops over them are not reliably vectorised.
type WindowRows<T> = [T; 4];

#[inline(always)]
fn evens<T: Copy>(x: &[T; 8]) -> WindowRows<T> {
    [x[0], x[2], x[4], x[6]]
}

#[inline(always)]
fn odds<T: Copy>(x: &[T; 8]) -> WindowRows<T> {
    [x[1], x[3], x[5], x[7]]
}

#[inline(always)]
fn interleaved<T: Copy>(a: WindowRows<T>, b: WindowRows<T>) -> [T; 8] {
    [a[0], b[0], a[1], b[1], a[2], b[2], a[3], b[3]]
}

/// Returns the elements of `left` where `x` is the maximum, and zeroes them in `left`.
#[inline(always)]
fn take<T: KernelFloat>(left: &mut WindowRows<T>, x: WindowRows<T>, out: &WindowRows<T>) -> WindowRows<T> {
    let [a, b, c, d] = [x[0] == out[0], x[1] == out[1], x[2] == out[2], x[3] == out[3]];
    let taken = [left[0].or_zero(a), left[1].or_zero(b), left[2].or_zero(c), left[3].or_zero(d)];
    *left = [left[0].or_zero(!a), left[1].or_zero(!b), left[2].or_zero(!c), left[3].or_zero(!d)];
    taken
}

/// The gradient of four windows. A function of its own, since it compiles to slower code as part of a loop.
#[inline(never)]
fn four_to_maxima<T: KernelFloat>(
    dx_top: &mut [T; 8],
    dx_bottom: &mut [T; 8],
    top: &[T; 8],
    bottom: &[T; 8],
    out: &WindowRows<T>,
    dout: &WindowRows<T>,
) {
    let mut left = *dout;
    let (a, b) = (take(&mut left, evens(top), out), take(&mut left, odds(top), out));
    let (c, d) = (take(&mut left, evens(bottom), out), take(&mut left, odds(bottom), out));
    (*dx_top, *dx_bottom) = (interleaved(a, b), interleaved(c, d));
}

fn to_maxima_by_fours<T: KernelFloat>(width: usize, dx: &mut [T], x: &[T], out: &[T], dout: &[T]) {
    let of_out = out.chunks_exact(width / 2).zip(dout.chunks_exact(width / 2));
    for ((dx, x), (out, dout)) in dx.chunks_exact_mut(2 * width).zip(x.chunks_exact(2 * width)).zip(of_out) {
        let ((top, bottom), (dx_top, dx_bottom)) = (x.split_at(width), dx.split_at_mut(width));
        let x = top.as_chunks().0.iter().zip(bottom.as_chunks().0);
        let dx = dx_top.as_chunks_mut().0.iter_mut().zip(dx_bottom.as_chunks_mut().0);
        let of_out = out.as_chunks().0.iter().zip(dout.as_chunks().0);
        for (((top, bottom), (dx_top, dx_bottom)), (out, dout)) in x.zip(dx).zip(of_out) {
            four_to_maxima(dx_top, dx_bottom, top, bottom, out, dout);
        }
    }
}

fn to_maxima_one_by_one<T: KernelFloat>(width: usize, dx: &mut [T], x: &[T], out: &[T], dout: &[T]) {
    let of_out = out.chunks_exact(width / 2).zip(dout.chunks_exact(width / 2));
    for ((dx, x), (out, dout)) in dx.chunks_exact_mut(2 * width).zip(x.chunks_exact(2 * width)).zip(of_out) {
        let ((top, bottom), (dx_top, dx_bottom)) = (x.split_at(width), dx.split_at_mut(width));
        let x = top.as_chunks().0.iter().zip(bottom.as_chunks().0);
        let dx = dx_top.as_chunks_mut().0.iter_mut().zip(dx_bottom.as_chunks_mut().0);
        for (((x, y), (dx, dy)), (out, dout)) in x.zip(dx).zip(out.iter().zip(dout)) {
            let ([a, b], [c, d]) = (x.map(|x| x == *out), y.map(|y| y == *out));
            *dx = [dout.or_zero(a), dout.or_zero(b & !a)];
            *dy = [dout.or_zero(c & !(a | b)), dout.or_zero(d & !(a | b | c))];
        }
    }
}
