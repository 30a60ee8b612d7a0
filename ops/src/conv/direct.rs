//! Direct convolution of single channels with few filters each, for which matrix products do not pay.

use autobwd::{
    Cx, Result,
    op::{Factor, GemmElement, LaneOf, VectorLoops, Vectorised},
};

use super::{
    gemm_conv::{ConvPart, Convolution},
    storage::ConvElement,
};
use crate::{
    kernel_helpers::KernelFloat,
    norm::DataLayout,
    tap_rows::TapRows,
    tap_sums::{TALLEST, TapSums},
    windows::Windows,
};

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

    /// The windows of a convolution that computes the gradient of images, if windows are small, channels are planes, and
    /// each channel has one filter: over `dy` with zeros between its elements, with the mirrored filter.
    pub(super) fn small_back(&self) -> Option<SpreadWindows> {
        let narrow = |windows: &Windows| windows.before < windows.size && windows.stride <= 2;
        if self.y.channels != 1 || self.small_correlation().is_none() || !self.windows.iter().all(narrow) {
            return None;
        }
        let mirrored = self.windows.map(|Windows { size, dilation, before, after, .. }| Windows {
            size,
            stride: 1,
            dilation,
            before: size - 1 - before,
            after,
        });
        let strides = self.windows.map(|windows| windows.stride);
        let spread = [0, 1].map(|i| (self.y.size[i] - 1) * strides[i] + 1);
        let rows = TapRows::new(spread, self.x.size, mirrored, &[3, 5])?;
        Some(SpreadWindows { strides, spread, rows })
    }

    /// Adds to `dx`, which is zero, the gradient of [`apply`](Convolution::apply).
    pub(super) fn apply_back<T: ConvElement>(
        &self,
        filters: &[T],
        dy: &[T],
        dx: &mut [T::Sum],
        scratch: &mut [T::Sum],
    ) {
        if let Some(windows) = self.small_back() {
            return windows.convolve((dy, self.y.size[1]), filters, dx, scratch);
        }
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

    /// The windows, if they are small enough for sums of all their elements together.
    pub(super) fn small_correlation(&self) -> Option<TapRows> {
        self.small().filter(|_| self.windows[0].size <= TALLEST)
    }

    /// Computes the gradient of all filters.
    pub(super) fn correlate<T: ConvElement>(
        &self,
        cx: &Cx,
        x: &[T],
        dy: &[T],
        dfilters: &mut [T],
    ) -> Result<()> {
        let ((channel, pixel), columns) = (self.y.steps(), self.columns());
        let (step, whole) = (columns.x_step(), columns.whole());
        let window = columns.window();
        cx.scratch_pair::<T, _, _>(self.scratch::<T>(ConvPart::FilterGrad, cx.threads()), |_, scratch| {
            cx.try_chunks_mut(dfilters, window, scratch, |filter, dfilter, scratch| {
                let (number, channel) = (filter / self.y.channels, filter % self.y.channels * channel);
                let groups = (0..self.images).map(|image| self.group(image, number));
                let images =
                    groups.map(|group| (self.x.group(x, group), &self.y.group_onwards(dy, group)[channel..]));
                if let Some(rows) = self.small_correlation() {
                    let sums = T::Sum::vectorised(SmallCorrelation { rows, images, scratch });
                    let sums = sums.iter().flat_map(|row| &row[..rows.width()]);
                    dfilter.iter_mut().zip(sums).for_each(|(out, sum)| *out = T::rounded(T::Sum::of(*sum)));
                    return Ok(());
                }
                for (out, block) in dfilter.iter_mut().zip(columns.blocks(&whole)) {
                    let mut sum = 0.0;
                    if let Some(block) = block {
                        for (x, dy) in images.clone() {
                            for (at, from) in block.rows() {
                                sum += dot((&x[from..], step), (&dy[at * pixel..], pixel), block.n).into();
                            }
                        }
                    }
                    *out = T::rounded(T::Sum::of(sum));
                }
                Ok(())
            })
        })
    }
}

/// Windows over an image with zeros between its elements.
pub(super) struct SpreadWindows {
    strides: [usize; 2],
    /// Height and width of the spread image.
    spread: [usize; 2],
    rows: TapRows,
}

impl SpreadWindows {
    /// Elements of scratch memory.
    pub(super) fn scratch(&self) -> usize {
        let spread = if self.strides == [1, 1] { 0 } else { self.spread[0] * self.spread[1] };
        spread + self.rows.scratch()
    }

    /// Sets `dx` to the convolution of `dy`, in rows of that width, with the mirrored filter.
    fn convolve<T: ConvElement>(
        &self,
        (dy, width): (&[T], usize),
        filter: &[T],
        dx: &mut [T::Sum],
        scratch: &mut [T::Sum],
    ) {
        let (rows, taps) = (self.rows, self.rows.taps());
        if self.strides == [1, 1] {
            let mut mirrored = [T::default(); TALLEST * TALLEST];
            mirrored.iter_mut().zip(filter.iter().rev()).for_each(|(to, from)| *to = *from);
            return T::Sum::vectorised(SmallFilter {
                rows,
                x: dy,
                filter: &mirrored[..taps],
                y: dx,
                scratch,
            });
        }
        let (image, scratch) = scratch.split_at_mut(self.spread[0] * self.spread[1]);
        self.spread(dy, width, image);
        let mut mirrored = [T::Sum::ZERO; TALLEST * TALLEST];
        mirrored.iter_mut().zip(filter.iter().rev()).for_each(|(to, from)| *to = from.widened());
        T::Sum::vectorised(SmallFilter { rows, x: &*image, filter: &mirrored[..taps], y: dx, scratch });
    }

    /// Sets an image to the elements of `dy`, with zeros between them.
    fn spread<T: ConvElement>(&self, dy: &[T], width: usize, image: &mut [T::Sum]) {
        let ([down, across], spread) = (self.strides, self.spread[1]);
        for (rows, dy) in image.chunks_mut(spread * down).zip(dy.chunks(width)) {
            let (row, zeros) = rows.split_at_mut(spread);
            zeros.fill(T::Sum::ZERO);
            if across == 1 {
                row.iter_mut().zip(dy).for_each(|(to, from)| *to = from.widened());
                continue;
            }
            let (pairs, last) = row.as_chunks_mut::<2>();
            pairs.iter_mut().zip(dy).for_each(|(to, from)| *to = [from.widened(), T::Sum::ZERO]);
            last.iter_mut().zip(dy.last()).for_each(|(to, from)| *to = from.widened());
        }
    }
}

/// Sums of the products of elements under windows with the numbers of the windows, over planes `x` and `dy` of images.
struct SmallCorrelation<'s, I, T> {
    rows: TapRows,
    images: I,
    scratch: &'s mut [T],
}

impl<'a, T: ConvElement, I: Iterator<Item = (&'a [T], &'a [T])>> VectorLoops<T::Sum>
    for SmallCorrelation<'_, I, T::Sum>
{
    type Output = [[f64; TALLEST]; TALLEST];

    #[inline(always)]
    fn run<F: LaneOf<T::Sum>>(self) -> Self::Output {
        if self.rows.width() == 3 { self.sums::<F, 3>() } else { self.sums::<F, 5>() }
    }
}

impl<'a, T: ConvElement, I: Iterator<Item = (&'a [T], &'a [T])>> SmallCorrelation<'_, I, T::Sum> {
    #[inline(always)]
    fn sums<F: LaneOf<T::Sum>, const W: usize>(self) -> [[f64; TALLEST]; TALLEST] {
        let SmallCorrelation { rows, images, scratch } = self;
        let (mut sums, mut all) = (TapSums::<F, W>::new(rows), [[0.0; TALLEST]; TALLEST]);
        // `for_each` would not have the instructions of this function.
        for (x, dy) in images {
            sums.add(x, dy, scratch);
        }
        all.iter_mut().zip(&sums.finish()).for_each(|(all, sums)| all[..W].copy_from_slice(sums));
        all
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

impl<T: Factor<Sum: KernelFloat>> VectorLoops<T::Sum> for SmallFilter<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<F: LaneOf<T::Sum>>(self) {
        if self.rows.width() == 3 { self.convolve::<F, 3>() } else { self.convolve::<F, 5>() }
    }
}

impl<T: Factor<Sum: KernelFloat>> SmallFilter<'_, T> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conv::image_layout::ImageLayout;

    #[test]
    fn gradient_of_images_is_the_transpose_of_the_convolution() {
        for (stride, before, size, width) in [
            (1, 1, 3, 7),
            (2, 1, 3, 8),
            (2, 2, 5, 9),
            (1, 4, 5, 4),
            (2, 0, 3, 20),
            (1, 0, 5, 33),
            (2, 1, 3, 2),
        ] {
            let windows = |stride| Windows { size, stride, dilation: 1, before, after: before };
            let windows = [windows(1), windows(stride)];
            let x = [width + 3, width];
            let y = [0, 1].map(|i| windows[i].count(x[i], false).unwrap_or(0));
            if y.contains(&0) {
                continue;
            }
            let side = |size| ImageLayout { channels: 1, size, inside: 1, format: DataLayout::Nchw };
            let conv = Convolution { images: 1, groups: 1, x: side(x), y: side(y), windows };
            let Some(back) = conv.small_back() else { panic!("windows of {size} columns are small") };
            let numbers =
                |n: usize, step: usize| (0..n).map(|i| (i * step % 17) as f64 - 8.0).collect::<Vec<f64>>();
            let (filter, dy) = (numbers(size * size, 5), numbers(y[0] * y[1], 3));
            let mut scratch = vec![f64::NAN; back.scratch()];
            let mut found = vec![0.0; x[0] * x[1]];
            conv.apply_back(&filter, &dy, &mut found, &mut scratch);
            let mut expected = vec![0.0; x[0] * x[1]];
            conv.each_row(&filter, |weight: f64, n, [from, y_step], [at, x_step]| {
                add_scaled((&mut expected[at..], x_step), (&dy[from..], y_step), n, weight);
            });
            assert_eq!(
                found, expected,
                "stride {stride}, padding {before}, {size} elements, {width} columns"
            );
        }
    }
}
