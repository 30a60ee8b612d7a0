//! Convolution with windows of 3 × 3 elements by Winograd's algorithm: 36 multiplications for 16 pixels instead of 144.
//!
//! `y` is divided into tiles of 4 × 4 pixels. As polynomials, the 6 × 6 elements of `x` under the windows of a tile, and
//! the filters, are evaluated at points; the products at each point, summed over channels, are a matrix product;
//! interpolation gives the pixels (A. Lavin, S. Gray, "Fast Algorithms for Convolutional Neural Networks", 2016).
//! The points are 0, ±√½, ±√2 and ∞. With them, rounding errors are twice those of sums of products; with 0, ±1, ±2 and
//! ∞, they are five times those (S. Alam et al., "Winograd Convolution for Deep Neural Networks: Efficient Point
//! Selection", 2022). The gradient of the filters is the transpose of the algorithm.

mod filter_gradient;
mod tiles;
pub(crate) mod transforms;

use std::{marker::PhantomData, ops::Range};

use autobwd::{
    Cx, Result,
    op::{Factor, GemmElement, Mat, Strided, Vectorised},
};

use super::{
    gemm_conv::{ConvPart, Convolution},
    storage::ConvElement,
};
use crate::{
    kernel_helpers::{KernelFloat, PART, nth},
    norm::DataLayout,
    windows::Windows,
};
use tiles::TiledImages;
use transforms::{AtPoints, FilterAtPoints, FromPoints, Interleave, Squares};

/// Pixels of a tile and elements of a window, vertically and horizontally.
pub(crate) const TILE: usize = 4;
pub(crate) const WINDOW: usize = 3;
pub(crate) const POINTS: usize = TILE + WINDOW - 1;
/// The same in two dimensions.
const PIXELS_2D: usize = TILE * TILE;
pub(crate) const WINDOW_2D: usize = WINDOW * WINDOW;
pub(crate) const POINTS_2D: usize = POINTS * POINTS;
/// Elements of the values at all points of a block of tiles, such that they stay in the cache.
const BLOCK: usize = 1 << 20;
/// The most elements of the values of one row of tiles.
const LARGEST_ROW: usize = 1 << 22;
/// The least number of channels and of filters with which the algorithm pays.
const LEAST_CHANNELS: usize = 24;
/// The least number of pixels for which evaluating the filters pays.
const LEAST_PIXELS: usize = 512;
/// Squares that are transformed together, and channels of a filter.
const LANES: usize = 16;

/// A convolution with windows of 3 × 3 elements, one apart, of images with the channels first.
pub(super) struct Winograd {
    images: usize,
    groups: usize,
    /// Channels of a group of `x` and of `y`.
    channels: [usize; 2],
    /// Height and width of `x` and of `y`.
    x: [usize; 2],
    y: [usize; 2],
    /// Padding above and to the left.
    before: [usize; 2],
    /// Whether filters are mirrored and map `y` to `x`, as in the gradient of the images.
    mirrored: bool,
}

impl Convolution {
    /// That part of the convolution by Winograd's algorithm, if it pays.
    pub(super) fn winograd<T: ConvElement>(&self, part: ConvPart) -> Option<Winograd> {
        let back = part == ConvPart::DataGrad;
        let y = if back { &self.x } else { &self.y };
        let pays = T::PREFERS_WINOGRAD
            && self.x.channels.min(self.y.channels) >= LEAST_CHANNELS
            && self.images.saturating_mul(y.pixels()) >= LEAST_PIXELS;
        let winograd = if pays { self.as_winograd(back) } else { None };
        // One row of tiles at least is computed at a time.
        winograd.filter(|winograd| winograd.row() <= LARGEST_ROW)
    }

    /// The same, if the algorithm applies.
    fn as_winograd(&self, back: bool) -> Option<Winograd> {
        let fits = |w: &Windows| (w.size, w.stride, w.dilation) == (WINDOW, 1, 1) && w.before < WINDOW;
        if self.is_nothing() || self.x.format != DataLayout::Nchw || !self.windows.iter().all(fits) {
            return None;
        }
        let (x, y) = if back { (&self.y, &self.x) } else { (&self.x, &self.y) };
        Some(Winograd {
            images: self.images,
            groups: self.groups,
            channels: [x.channels, y.channels],
            x: x.size,
            y: y.size,
            before: self.windows.map(|w| if back { WINDOW - 1 - w.before } else { w.before }),
            mirrored: back,
        })
    }
}

impl Winograd {
    /// Tiles of an image, vertically and horizontally.
    fn tiles(&self) -> [usize; 2] {
        self.y.map(|len| len.div_ceil(TILE))
    }

    /// Elements of the values of a row of tiles of `x` and of `y` at the points.
    fn row(&self) -> usize {
        let [from, to] = self.channels;
        POINTS_2D.saturating_mul(from + to).saturating_mul(self.tiles()[1])
    }

    /// Rows of tiles of a block, among those of all images.
    fn block(&self) -> usize {
        (BLOCK / self.row()).clamp(1, self.images * self.tiles()[0])
    }

    /// Rows and columns of the part of a padded channel of `x` that a block needs; tiles overlap the next one.
    fn padded(&self) -> [usize; 2] {
        let [down, across] = self.tiles();
        [self.block().min(down) * TILE + WINDOW - 1, (across + 1) * TILE]
    }

    /// Scratch elements of the values of filters, of a block of `x` and of `y` at the points, and of each worker.
    fn scratch(&self) -> ([usize; 3], usize) {
        let ([from, to], [rows, cols]) = (self.channels, self.padded());
        let tiles = self.block() * self.tiles()[1];
        let of_filters = self.groups.saturating_mul(from).saturating_mul(to);
        let values = [of_filters, from * tiles, to * tiles].map(|len| len.saturating_mul(POINTS_2D));
        (values, (rows * cols) + POINTS_2D * tiles)
    }

    /// Scratch elements in total.
    pub(super) fn scratch_len(&self, part: ConvPart, workers: usize) -> usize {
        let (values, each) = match part {
            ConvPart::FilterGrad => self.filter_gradient_scratch(),
            _ => self.scratch(),
        };
        values.into_iter().fold(workers.saturating_mul(each), usize::saturating_add)
    }

    /// `y` = the convolution of `x` with `filters`.
    pub(super) fn run<T: ConvElement>(&self, cx: &Cx, x: &[T], filters: &[T], y: &mut [T]) -> Result<()> {
        let ([of_filters, of_x, of_y], _) = self.scratch();
        let ([down, across], [from, to]) = (self.tiles(), self.channels);
        cx.scratch(self.scratch_len(ConvPart::Forward, cx.threads()), |scratch| {
            let (u, scratch) = scratch.split_at_mut(of_filters);
            let (v, scratch) = scratch.split_at_mut(of_x);
            let (m, scratch) = scratch.split_at_mut(of_y);
            self.evaluate_filters(cx, filters, u);
            let all = self.images * down;
            for start in (0..all).step_by(self.block()) {
                let rows = start..all.min(start + self.block());
                let tiles = rows.len() * across;
                let (v, m) = (&mut v[..POINTS_2D * from * tiles], &mut m[..POINTS_2D * to * tiles]);
                for group in 0..self.groups {
                    self.input(x).at_points::<AtPoints, POINTS, POINTS_2D>(cx, (group, &rows), v, scratch)?;
                    self.multiply(cx, nth(u, group, POINTS_2D * from * to), v, m)?;
                    self.interpolate(cx, m, (group, &rows), y, scratch)?;
                }
            }
            Ok(())
        })
    }

    /// The values of the filters at the points, `[groups * filters, points, channels]`.
    fn evaluate_filters<T: ConvElement>(&self, cx: &Cx, filters: &[T], u: &mut [T::Sum]) {
        let ([channels, to], mirrored) = (self.channels, self.mirrored);
        let share = PART.div_ceil(POINTS_2D * channels);
        cx.chunks_mut(u, share * POINTS_2D * channels, |part, u| {
            for (i, u) in u.chunks_mut(POINTS_2D * channels).enumerate() {
                let (group, filter) = ((part * share + i) / to, (part * share + i) % to);
                let filters = nth(filters, group, channels * to * WINDOW_2D);
                let (start, step) = if mirrored { (filter, to) } else { (filter * channels, 1) };
                let mut elements = [[T::Sum::ZERO; LANES]; WINDOW_2D];
                for at in (0..channels).step_by(LANES) {
                    let n = LANES.min(channels - at);
                    let filters = &filters[(start + at * step) * WINDOW_2D..];
                    filter_elements(filters, step * WINDOW_2D, mirrored, &mut elements);
                    let from = elements.each_ref().map(|elements| &elements[..n]);
                    let to = slices_mut::<_, POINTS_2D>(u, channels).map(|to| &mut to[at..at + n]);
                    T::Sum::vectorised(Squares { transform: PhantomData::<FilterAtPoints>, from, to });
                }
            }
        });
    }

    /// The images whose elements under windows are evaluated.
    fn input<'a, T>(&'a self, data: &'a [T]) -> TiledImages<'a, T> {
        TiledImages { winograd: self, data, channels: self.channels[0], size: self.x, before: self.before }
    }

    /// For every point, `m = u · v`: `[points, filters, tiles]`.
    fn multiply<T: KernelFloat>(&self, cx: &Cx, u: &[T], v: &[T], m: &mut [T]) -> Result<()> {
        let [from, to] = self.channels;
        let tiles = m.len() / (POINTS_2D * to);
        cx.try_chunks_mut(m, to * tiles, &mut [] as &mut [T], |point, m, _| {
            let u = Mat { data: &u[point * from..], rows: to, cols: from, transposed: false };
            let v = Mat { data: nth(v, point, from * tiles), rows: from, cols: tiles, transposed: false };
            cx.product_strided(m, tiles, false, Strided { mat: u, stride: POINTS_2D * from }, v.into())
        })
    }

    /// The pixels of a group of `y` for some rows of tiles.
    fn interpolate<T: ConvElement>(
        &self,
        cx: &Cx,
        m: &[T::Sum],
        (group, rows): (usize, &Range<usize>),
        y: &mut [T],
        scratch: &mut [T::Sum],
    ) -> Result<()> {
        let (to, across, pixels) = (self.channels[1], self.tiles()[1], self.y[0] * self.y[1]);
        let (tiles, mut at) = (rows.len() * across, 0);
        let share = PART.div_ceil(POINTS_2D * tiles);
        for (image, rows) in self.images_of(rows) {
            let len = rows.len() * across;
            let planes = &mut y[(image * self.groups + group) * to * pixels..][..to * pixels];
            cx.try_chunks_mut(planes, share * pixels, scratch, |part, planes, scratch| {
                for (i, plane) in planes.chunks_mut(pixels).enumerate() {
                    let start = (part * share + i) * tiles + at;
                    let from = slices::<_, POINTS_2D>(m, to * tiles).map(|point| &point[start..start + len]);
                    T::Sum::vectorised(Squares {
                        transform: PhantomData::<FromPoints>,
                        from,
                        to: slices_mut::<_, PIXELS_2D>(scratch, len),
                    });
                    let (pixels, y) = (slices(scratch, len), &mut plane[rows.start * TILE * self.y[1]..]);
                    T::Sum::vectorised(Interleave { pixels, across, y, width: self.y[1] });
                }
                Ok(())
            })?;
            at += len;
        }
        Ok(())
    }

    /// The images to which some rows of tiles belong, each with its own rows.
    fn images_of(&self, rows: &Range<usize>) -> impl Iterator<Item = (usize, Range<usize>)> + use<> {
        let (down, rows) = (self.tiles()[0], rows.clone());
        (rows.start / down..rows.end.div_ceil(down)).map(move |image| {
            let first = image * down;
            (image, rows.start.max(first) - first..rows.end.min(first + down) - first)
        })
    }
}

/// The first `N` of consecutive slices of that length.
fn slices<T, const N: usize>(all: &[T], len: usize) -> [&[T]; N] {
    let mut all = all.chunks(len);
    [(); N].map(|()| all.next().unwrap_or_default())
}

pub(crate) fn slices_mut<T, const N: usize>(all: &mut [T], len: usize) -> [&mut [T]; N] {
    let mut all = all.chunks_mut(len);
    [(); N].map(|()| all.next().unwrap_or_default())
}

/// Copies elements of a filter for some channels, for each element those of all channels.
fn filter_elements<T: Factor>(filters: &[T], step: usize, mirrored: bool, elements: &mut [[T::Sum; LANES]]) {
    let n = elements.len();
    for (k, elements) in elements.iter_mut().enumerate() {
        let filters = filters[if mirrored { n - 1 - k } else { k }..].iter().step_by(step);
        elements.iter_mut().zip(filters).for_each(|(to, from)| *to = from.widened());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conv::image_layout::ImageLayout;

    fn numbers(n: usize, seed: usize) -> Vec<f64> {
        (0..n).map(|i| ((i * 37 + seed) % 101) as f64 / 50.0 - 1.0).collect()
    }

    /// Compares with sums of products; the gradient is compared by `⟨conv(x), dy⟩ = ⟨x, dx⟩`.
    fn check(images: usize, groups: usize, channels: [usize; 2], x: [usize; 2], [before, after]: [usize; 2]) {
        let windows = x.map(|_| Windows { size: WINDOW, stride: 1, dilation: 1, before, after });
        let y = x.map(|len| len + before + after + 1 - WINDOW);
        let side = |channels, size| ImageLayout { channels, size, inside: 1, format: DataLayout::Nchw };
        let conv = Convolution { images, groups, x: side(channels[0], x), y: side(channels[1], y), windows };
        let all =
            |side: usize, [height, width]: [usize; 2]| images * groups * channels[side] * height * width;
        let (input, dy) = (numbers(all(0, x), 3), numbers(all(1, y), 5));
        let filters = numbers(groups * channels[0] * channels[1] * WINDOW_2D, 7);
        let run = |back: bool, from: &[f64], n: usize, threads: usize| {
            let mut to = vec![f64::NAN; n];
            let winograd = conv.as_winograd(back).expect("windows of 3 × 3, one apart");
            winograd.run(&Cx::new(threads), from, &filters, &mut to).expect("sizes are right");
            to
        };
        let output = run(false, &input, dy.len(), 1);
        assert_eq!(output, run(false, &input, dy.len(), 2), "the same bits on two threads");
        for (at, output) in output.iter().enumerate() {
            let (map, pixel) = (at / (y[0] * y[1]), [at / y[1] % y[0], at % y[1]]);
            let (unit, filter) = (map / channels[1], map % channels[1]);
            let mut sum = 0.0;
            for channel in 0..channels[0] {
                let filter = (unit % groups * channels[1] + filter) * channels[0] + channel;
                for tap in 0..WINDOW_2D {
                    let [row, col] = [0, 1].map(|i| pixel[i] + [tap / WINDOW, tap % WINDOW][i]);
                    if (before..before + x[0]).contains(&row) && (before..before + x[1]).contains(&col) {
                        let row = (unit * channels[0] + channel) * x[0] + row - before;
                        sum += filters[filter * WINDOW_2D + tap] * input[row * x[1] + col - before];
                    }
                }
            }
            assert!((output - sum).abs() < 1e-12, "{output} is not {sum}: {images} images of {x:?}");
        }
        let mut gradient = vec![f64::NAN; filters.len()];
        let winograd = conv.as_winograd(false).expect("windows of 3 × 3, one apart");
        winograd.filter_gradient(&Cx::new(1), &input, &dy, &mut gradient).expect("sizes are right");
        for (at, gradient) in gradient.iter().enumerate() {
            let [tap, channel, filter] =
                [at % WINDOW_2D, at / WINDOW_2D % channels[0], at / (WINDOW_2D * channels[0])];
            let (group, [down, across]) = (filter / channels[1], [tap / WINDOW, tap % WINDOW]);
            let mut sum = 0.0;
            for (unit, pixel) in
                (0..images).flat_map(|i| (0..y[0] * y[1]).map(move |at| (i * groups + group, at)))
            {
                let [row, col] = [pixel / y[1] + down, pixel % y[1] + across];
                if (before..before + x[0]).contains(&row) && (before..before + x[1]).contains(&col) {
                    let row = (unit * channels[0] + channel) * x[0] + row - before;
                    sum += dy[(unit * channels[1] + filter % channels[1]) * y[0] * y[1] + pixel]
                        * input[row * x[1] + col - before];
                }
            }
            assert!((gradient - sum).abs() < 1e-9, "{gradient} is not {sum}: {images} images of {x:?}");
        }
        let dot = |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(x, y)| x * y).sum::<f64>();
        let dx = run(true, &dy, input.len(), 1);
        let (one, other) = (dot(&output, &dy), dot(&input, &dx));
        assert!((one - other).abs() < 1e-9, "{one} is not {other}");
    }

    #[test]
    fn sums_of_products_are_equal() {
        for (x, padding) in [
            ([3, 3], [0, 0]),
            ([1, 1], [1, 1]),
            ([4, 6], [1, 1]),
            ([9, 5], [2, 0]),
            ([2, 70], [0, 2]),
            ([6, 7], [2, 5]),
        ] {
            check(1, 1, [1, 1], x, padding);
            check(2, 1, [17, 3], x, padding);
            check(3, 2, [2, 5], x, padding);
        }
        // Several blocks, whose borders are not those of images.
        check(3, 1, [40, 24], [60, 60], [1, 1]);
    }
}
