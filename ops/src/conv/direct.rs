//! Convolutions of single channels with few filters each: too little for products.

use autobwd::Cx;

use super::kernel::Convolution;
use crate::common::Real;

impl Convolution {
    /// Adds to `y` what the filters of one group make of `x`, its only channel.
    pub(super) fn apply<T: Real>(&self, x: &[T], filters: &[T], y: &mut [T]) {
        let (step, pixel) = (self.columns().x_step(), self.y.steps().1);
        self.each_row(filters, |weight, first, n, at, from| {
            add_scaled((&mut y[first + at * pixel..], pixel), (&x[from..], step), n, *weight);
        });
    }

    /// Adds to `dx` the gradient of what [`apply`](Convolution::apply) does.
    pub(super) fn apply_back<T: Real>(&self, filters: &[T], dy: &[T], dx: &mut [T]) {
        let (step, pixel) = (self.columns().x_step(), self.y.steps().1);
        self.each_row(filters, |weight, first, n, at, to| {
            add_scaled((&mut dx[to..], step), (&dy[first + at * pixel..], pixel), n, *weight);
        });
    }

    /// Calls `each(weight, first, n, at, x)` for every element of the filters of a group and every row of pixels of `y`
    /// for which it lies in the image: where the filter's channel of `y` begins, how many pixels, the first, and where the
    /// element is for that.
    fn each_row<'a, T>(&self, filters: &'a [T], mut each: impl FnMut(&'a T, usize, usize, usize, usize)) {
        let (columns, channel) = (self.columns(), self.y.steps().0);
        let whole = columns.whole();
        for (i, filter) in filters.chunks(columns.window()).enumerate() {
            for (weight, tap) in filter.iter().zip(columns.taps()) {
                let Some(block) = columns.block(&tap, &whole) else { continue };
                block.rows().for_each(|(at, x)| each(weight, i * channel, block.n, at, x));
            }
        }
    }

    /// The gradient of all filters.
    pub(super) fn correlate<T: Real>(&self, cx: &Cx, x: &[T], dy: &[T], dfilters: &mut [T]) {
        let ((channel, pixel), columns) = (self.y.steps(), self.columns());
        let (step, whole) = (columns.x_step(), columns.whole());
        cx.chunks_mut(dfilters, columns.window(), |filter, dfilter| {
            let (number, channel) = (filter / self.y.channels, filter % self.y.channels * channel);
            for (out, tap) in dfilter.iter_mut().zip(columns.taps()) {
                let mut sum = 0.0;
                if let Some(block) = columns.block(&tap, &whole) {
                    for group in self.in_images(number) {
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

/// `y += weight * x`, of `n` elements that are some steps apart.
fn add_scaled<T: Real>((y, y_step): (&mut [T], usize), (x, x_step): (&[T], usize), n: usize, weight: T) {
    match (y_step, x_step) {
        (1, 1) => y[..n].iter_mut().zip(x).for_each(|(y, x)| *y += weight * *x),
        _ => {
            let y = y.iter_mut().step_by(y_step).take(n);
            y.zip(x.iter().step_by(x_step)).for_each(|(y, x)| *y += weight * *x);
        }
    }
}

/// The sum of products of `n` elements that are some steps apart.
fn dot<T: Real>((x, x_step): (&[T], usize), (y, y_step): (&[T], usize), n: usize) -> T {
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
