//! Direct convolution of single channels with few filters each, for which matrix products do not pay.

use autobwd::{
    Cx,
    op::{Factor, GemmElement, LaneOf, VectorLoops, Vectorised},
};

use super::{gemm_conv::Convolution, storage::ConvElement};
use crate::{kernel_helpers::KernelFloat, norm::DataLayout, tap_rows::TapRows};

impl Convolution {
    /// The windows, if they are small and channels are planes.
    pub(super) fn small(&self) -> Option<TapRows> {
        let planes = self.x.format == DataLayout::Nchw;
        planes.then(|| TapRows::new(self.x.size, self.y.size, self.windows, &[3, 5])).flatten()
    }

    /// Sets `y` to the convolution of `x`, the only channel of a group, with the filters of the group. `y` is zero before
    /// if windows are not small.
    pub(super) fn apply<T: ConvElement>(
        &self,
        x: &[T],
        filters: &[T],
        y: &mut [T::Sum],
        scratch: &mut [T::Sum],
    ) {
        if let Some(rows) = self.small() {
            let filters = filters.chunks(self.columns().window());
            for (filter, y) in filters.zip(y.chunks_mut(self.y.pixels())) {
                T::Sum::vectorised(SmallFilter { rows, x, filter, y, scratch: &mut *scratch });
            }
            return;
        }
        self.each_row(filters, |weight, n, [at, y_step], [from, x_step]| {
            add_scaled((&mut y[at..], y_step), (&x[from..], x_step), n, weight);
        });
    }

    /// Adds to `dx` the gradient of [`apply`](Convolution::apply).
    pub(super) fn apply_back<T: ConvElement>(&self, filters: &[T], dy: &[T], dx: &mut [T::Sum]) {
        self.each_row(filters, |weight, n, [from, y_step], [at, x_step]| {
            add_scaled((&mut dx[at..], x_step), (&dy[from..], y_step), n, weight);
        });
    }

    /// Calls `each(weight, n, y, x)` for every filter element of a group and every row of `n` pixels for which it lies
    /// inside the image; `y` and `x` are start and stride of their elements.
    fn each_row<T: Factor>(
        &self,
        filters: &[T],
        mut each: impl FnMut(T::Sum, usize, [usize; 2], [usize; 2]),
    ) {
        let ((channel, pixel), columns) = (self.y.steps(), self.columns());
        let (step, whole) = (columns.x_step(), columns.whole());
        for (i, filter) in filters.chunks(columns.window()).enumerate() {
            for (weight, block) in filter.iter().zip(columns.blocks(&whole)) {
                let Some(block) = block else { continue };
                for (at, x) in block.rows() {
                    each(weight.widened(), block.n, [i * channel + at * pixel, pixel], [x, step]);
                }
            }
        }
    }

    /// Computes the gradient of all filters.
    pub(super) fn correlate<T: ConvElement>(&self, cx: &Cx, x: &[T], dy: &[T], dfilters: &mut [T]) {
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
                *out = T::rounded(T::Sum::of(sum));
            }
        });
    }
}

/// Sets `y` to the convolution of a plane with a filter.
struct SmallFilter<'a, T: Factor> {
    rows: TapRows,
    x: &'a [T],
    filter: &'a [T],
    y: &'a mut [T::Sum],
    scratch: &'a mut [T::Sum],
}

impl<T: ConvElement> VectorLoops<T::Sum> for SmallFilter<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<F: LaneOf<T::Sum>>(self) {
        if self.rows.width() == 3 { self.convolve::<F, 3>() } else { self.convolve::<F, 5>() }
    }
}

impl<T: ConvElement> SmallFilter<'_, T> {
    #[inline(always)]
    fn convolve<F: LaneOf<T::Sum>, const W: usize>(self) {
        let filter = self.filter.as_chunks::<W>().0;
        self.rows.fold((self.x, T::default()), (self.y, F::from(0.0)), self.scratch, |row| {
            let weights = filter[row].map(|weight| F::new(weight.widened()));
            move |sum, x: [F; W]| weights.iter().zip(x).fold(sum, |sum, (weight, x)| sum + *weight * x)
        });
    }
}

/// `y += weight * x` for `n` elements with strides.
fn add_scaled<T: ConvElement>(
    (y, y_step): (&mut [T::Sum], usize),
    (x, x_step): (&[T], usize),
    n: usize,
    weight: T::Sum,
) {
    match (y_step, x_step) {
        (1, 1) => y[..n].iter_mut().zip(x).for_each(|(y, x)| *y += weight * x.widened()),
        _ => {
            let y = y.iter_mut().step_by(y_step).take(n);
            y.zip(x.iter().step_by(x_step)).for_each(|(y, x)| *y += weight * x.widened());
        }
    }
}

/// Dot product of `n` elements with strides.
fn dot<T: ConvElement>((x, x_step): (&[T], usize), (y, y_step): (&[T], usize), n: usize) -> T::Sum {
    if (x_step, y_step) == (1, 1) {
        let ((x, x_rest), (y, y_rest)) = (x[..n].as_chunks::<8>(), y[..n].as_chunks::<8>());
        let mut sums = [T::Sum::ZERO; 8];
        for (x, y) in x.iter().zip(y) {
            sums.iter_mut().zip(x.iter().zip(y)).for_each(|(sum, (x, y))| *sum += x.widened() * y.widened());
        }
        let rest = x_rest.iter().zip(y_rest).map(|(x, y)| x.widened() * y.widened());
        return sums.into_iter().chain(rest).fold(T::Sum::ZERO, |sum, x| sum + x);
    }
    let pairs = x.iter().step_by(x_step).zip(y.iter().step_by(y_step)).take(n);
    pairs.fold(T::Sum::ZERO, |sum, (x, y)| sum + x.widened() * y.widened())
}
