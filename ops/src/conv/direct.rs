//! Direct convolution of single channels with few filters each, for which matrix products do not pay.

use autobwd::Cx;

use super::gemm_conv::Convolution;
use crate::kernel_helpers::KernelFloat;

impl Convolution {
    /// Adds the convolution of `x`, the only channel of a group, with the filters of the group to `y`.
    pub(super) fn apply<T: KernelFloat>(&self, x: &[T], filters: &[T], y: &mut [T]) {
        self.each_row(filters, |weight, n, [at, y_step], [from, x_step]| {
            add_scaled((&mut y[at..], y_step), (&x[from..], x_step), n, weight);
        });
    }

    /// Adds to `dx` the gradient of [`apply`](Convolution::apply).
    pub(super) fn apply_back<T: KernelFloat>(&self, filters: &[T], dy: &[T], dx: &mut [T]) {
        self.each_row(filters, |weight, n, [from, y_step], [at, x_step]| {
            add_scaled((&mut dx[at..], x_step), (&dy[from..], y_step), n, weight);
        });
    }

    /// Calls `each(weight, n, y, x)` for every filter element of a group and every row of `n` pixels for which it lies
    /// inside the image; `y` and `x` are start and stride of their elements.
    fn each_row<T: KernelFloat>(
        &self,
        filters: &[T],
        mut each: impl FnMut(T, usize, [usize; 2], [usize; 2]),
    ) {
        let ((channel, pixel), columns) = (self.y.steps(), self.columns());
        let (step, whole) = (columns.x_step(), columns.whole());
        for (i, filter) in filters.chunks(columns.window()).enumerate() {
            for (weight, block) in filter.iter().zip(columns.blocks(&whole)) {
                let Some(block) = block else { continue };
                for (at, x) in block.rows() {
                    each(*weight, block.n, [i * channel + at * pixel, pixel], [x, step]);
                }
            }
        }
    }

    /// Computes the gradient of all filters.
    pub(super) fn correlate<T: KernelFloat>(&self, cx: &Cx, x: &[T], dy: &[T], dfilters: &mut [T]) {
        let ((channel, pixel), columns) = (self.y.steps(), self.columns());
        let (step, whole) = (columns.x_step(), columns.whole());
        cx.chunks_mut(dfilters, columns.window(), |filter, dfilter| {
            let (number, channel) = (filter / self.y.channels, filter % self.y.channels * channel);
            for (out, block) in dfilter.iter_mut().zip(columns.blocks(&whole)) {
                let mut sum = 0.0;
                if let Some(block) = block {
                    for group in (0..self.images).map(|image| self.group(image, number)) {
                        let (x, dy) = (self.x.group(x, group), self.y.group(dy, group));
                        for (at, from) in block.rows() {
                            let dy = &dy[channel + at * pixel..];
                            sum += dot((&x[from..], step), (dy, pixel), block.n).into();
                        }
                    }
                }
                *out = T::of(sum);
            }
        });
    }
}

/// `y += weight * x` for `n` elements with strides.
fn add_scaled<T: KernelFloat>(
    (y, y_step): (&mut [T], usize),
    (x, x_step): (&[T], usize),
    n: usize,
    weight: T,
) {
    match (y_step, x_step) {
        (1, 1) => y[..n].iter_mut().zip(x).for_each(|(y, x)| *y += weight * *x),
        _ => {
            let y = y.iter_mut().step_by(y_step).take(n);
            y.zip(x.iter().step_by(x_step)).for_each(|(y, x)| *y += weight * *x);
        }
    }
}

/// Dot product of `n` elements with strides.
fn dot<T: KernelFloat>((x, x_step): (&[T], usize), (y, y_step): (&[T], usize), n: usize) -> T {
    if (x_step, y_step) == (1, 1) {
        let ((x, x_rest), (y, y_rest)) = (x[..n].as_chunks::<8>(), y[..n].as_chunks::<8>());
        let mut sums = [T::ZERO; 8];
        for (x, y) in x.iter().zip(y) {
            sums.iter_mut().zip(x.iter().zip(y)).for_each(|(sum, (x, y))| *sum += *x * *y);
        }
        let rest = x_rest.iter().zip(y_rest).map(|(x, y)| *x * *y);
        return sums.into_iter().chain(rest).fold(T::ZERO, |sum, x| sum + x);
    }
    let pairs = x.iter().step_by(x_step).zip(y.iter().step_by(y_step)).take(n);
    pairs.fold(T::ZERO, |sum, (x, y)| sum + *x * *y)
}
