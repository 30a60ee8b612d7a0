//! Convolutions by [Winograd's algorithm](crate::winograd), and their gradients, of images with the channels first.

mod filter_gradient;

use std::{marker::PhantomData, ops::Range};

use autobwd::{
    Cx, Result,
    op::{
        CHANNEL_BLOCK, DividedMat, GemmElement, Mat, Strided, SubmatrixMut, Vectorised, interleave_channels,
        separate_channels,
    },
};

use super::{
    gemm_conv::{ConvPart, Convolution},
    storage::ConvElement,
};
use crate::{
    kernel_helpers::{divided, unbounded},
    norm::DataLayout,
    winograd::{
        AtPoints, Evaluate, EvaluateFilters, FILTERS, Interpolate, POINTS, POINTS_2D, TILE, Tiling,
        Transform, WINDOW, WINDOW_2D, multiply,
    },
};

/// Elements of the values of a block of tiles at the points, such that they stay in the cache.
const BLOCK: usize = 1 << 19;
/// The most elements of the values of one row of tiles.
const LARGEST_ROW: usize = 1 << 22;
/// The least number of channels and of filters with which the algorithm pays.
const LEAST_CHANNELS: usize = 24;
/// Elements after a row of values: rows whose distance is a power of two would share lines of the cache.
const GAP: usize = CHANNEL_BLOCK;

/// A convolution with windows of 3 × 3 elements, one apart, of images with the channels first.
pub(super) struct Winograd {
    images: usize,
    groups: usize,
    /// Channels of a group of `x` and of `y`.
    channels: [usize; 2],
    tiling: Tiling,
    /// Whether filters are mirrored and map `y` to `x`, as in the gradient of the images.
    mirrored: bool,
}

/// Images whose channels are evaluated at the points.
struct Images<'a, T> {
    data: &'a [T],
    /// Channels of a group.
    channels: usize,
    tiling: Tiling,
}

impl Convolution {
    /// That part of the convolution by Winograd's algorithm, if it pays.
    pub(super) fn winograd<T: ConvElement>(&self, part: ConvPart) -> Option<Winograd> {
        let pays = T::PREFERS_WINOGRAD && self.x.channels.min(self.y.channels) >= LEAST_CHANNELS;
        let winograd = if pays { self.as_winograd(part == ConvPart::DataGrad) } else { None };
        // One row of tiles at least is computed at a time.
        winograd.filter(|winograd| {
            winograd.tiling.saves_multiplications(winograd.images) && winograd.row() <= LARGEST_ROW
        })
    }

    /// The same, if the algorithm applies.
    fn as_winograd(&self, back: bool) -> Option<Winograd> {
        if self.is_nothing() || self.x.format != DataLayout::Nchw {
            return None;
        }
        let tiling = Tiling::of(&self.windows, self.x.size, self.y.size)?;
        let back_tiling =
            Tiling { x: tiling.y, y: tiling.x, before: tiling.before.map(|before| WINDOW - 1 - before) };
        let channels = [self.x.channels, self.y.channels];
        Some(Winograd {
            images: self.images,
            groups: self.groups,
            channels: if back { [channels[1], channels[0]] } else { channels },
            tiling: if back { back_tiling } else { tiling },
            mirrored: back,
        })
    }
}

/// Whole blocks of channels.
fn in_blocks(channels: usize) -> usize {
    channels.next_multiple_of(CHANNEL_BLOCK)
}

impl Winograd {
    /// Elements of the values of a row of tiles of `x` at the points.
    fn row(&self) -> usize {
        let channels = self.groups.saturating_mul(in_blocks(self.channels[0]));
        POINTS_2D.saturating_mul(channels).saturating_mul(self.tiling.tiles()[1])
    }

    /// Rows of tiles of a block, among those of all images.
    fn block(&self) -> usize {
        (BLOCK / self.row()).clamp(1, self.images * self.tiling.tiles()[0])
    }

    /// The blocks of rows of tiles.
    fn blocks(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let (all, block) = (self.images * self.tiling.tiles()[0], self.block());
        (0..all).step_by(block).map(move |start| start..all.min(start + block))
    }

    /// The images to which some rows of tiles belong, each with its own rows.
    fn images_of(&self, rows: &Range<usize>) -> impl Iterator<Item = (usize, Range<usize>)> + use<> {
        let (down, rows) = (self.tiling.tiles()[0], rows.clone());
        (rows.start / down..rows.end.div_ceil(down)).map(move |image| {
            let first = image * down;
            (image, rows.start.max(first) - first..rows.end.min(first + down) - first)
        })
    }

    /// The most filters of a group that are multiplied together.
    fn filters(&self) -> usize {
        match self.groups {
            1 => FILTERS,
            // No two groups have filters of the same part.
            _ => (1..=FILTERS).rev().find(|n| self.channels[1].is_multiple_of(*n)).unwrap_or(1),
        }
    }

    fn x<'a, T>(&self, data: &'a [T]) -> Images<'a, T> {
        Images { data, channels: self.channels[0], tiling: self.tiling }
    }

    /// Elements of a row of values of so many channels of each group.
    fn width(&self, channels: usize) -> usize {
        self.groups.saturating_mul(in_blocks(channels)).saturating_add(GAP)
    }

    /// Elements of the values of a block of tiles at the points.
    fn values(&self, channels: usize) -> usize {
        let tiles = self.block() * self.tiling.tiles()[1];
        POINTS_2D.saturating_mul(tiles).saturating_mul(self.width(channels))
    }

    /// Scratch elements of a worker that evaluates a block of channels of images.
    fn plane(&self, tiling: &Tiling) -> usize {
        let rows = (self.block().min(tiling.tiles()[0]) * TILE + WINDOW - 1).min(tiling.x[0]);
        rows.saturating_mul(tiling.x[1]).saturating_mul(CHANNEL_BLOCK)
    }

    /// Scratch elements of a worker: filters, their values, products and pixels.
    fn parts(&self) -> [usize; 4] {
        let ([down, across], filters) = (self.tiling.tiles(), in_blocks(self.filters()));
        let rows = self.block();
        [
            WINDOW_2D * CHANNEL_BLOCK * CHANNEL_BLOCK,
            POINTS_2D * in_blocks(self.channels[0]) * filters,
            POINTS_2D * rows * across * filters,
            rows.min(down) * TILE * self.tiling.y[1] * CHANNEL_BLOCK,
        ]
    }

    /// Scratch elements in total.
    pub(super) fn scratch_len<T: ConvElement>(&self, part: ConvPart, workers: usize) -> usize {
        let (shared, each) = match part {
            ConvPart::FilterGrad => self.filter_gradient_scratch::<T>(),
            _ => {
                let own: usize = self.parts().into_iter().sum();
                let [height, width] = self.tiling.y;
                let y = self.images * self.groups * self.channels[1] * height * width;
                ([self.values(self.channels[0]), T::sums(y), 0], own.max(self.plane(&self.tiling)))
            }
        };
        shared.into_iter().fold(workers.saturating_mul(each), usize::saturating_add)
    }

    /// `y` = the convolution of `x` with `filters`.
    pub(super) fn run<T: ConvElement>(&self, cx: &Cx, x: &[T], filters: &[T], y: &mut [T]) -> Result<()> {
        cx.scratch(self.scratch_len::<T>(ConvPart::Forward, cx.threads()), |scratch| {
            let (values, scratch) = scratch.split_at_mut(self.values(self.channels[0]));
            let (sums, scratch) = scratch.split_at_mut(T::sums(y.len()));
            T::summed(cx, y, sums, |y| {
                for rows in self.blocks() {
                    self.evaluate::<T, AtPoints, POINTS, POINTS_2D>(cx, &self.x(x), &rows, values, scratch)?;
                    self.multiply(cx, filters, (&rows, values), y, scratch)?;
                }
                Ok(())
            })
        })
    }

    /// The values of images at the points, for some rows of tiles.
    fn evaluate<T: ConvElement, R: Transform<N, POINTS> + Sync, const N: usize, const NN: usize>(
        &self,
        cx: &Cx,
        images: &Images<'_, T>,
        rows: &Range<usize>,
        values: &mut [T::Sum],
        scratch: &mut [T::Sum],
    ) -> Result<()> {
        let (tiling, channels) = (images.tiling, images.channels);
        let ([height, width], across) = (tiling.x, tiling.tiles()[1]);
        let (tiles, cols, blocks) =
            (rows.len() * across, self.width(channels), channels.div_ceil(CHANNEL_BLOCK));
        let data = &mut values[..POINTS_2D * tiles * cols];
        let values = DividedMat { data, cols, part: [POINTS_2D * tiles, CHANNEL_BLOCK] };
        cx.try_zip_submatrices_mut([values], scratch, |[_, block], [mut values], scratch| {
            let (group, first) = (block / blocks, block % blocks * CHANNEL_BLOCK);
            if group >= self.groups {
                return Ok(());
            }
            let mut at = 0;
            for (image, rows) in self.images_of(rows) {
                let under = tiling.rows_under(&rows);
                let plane = (image * self.groups + group) * channels + first;
                let planes = Mat {
                    data: &images.data[plane * height * width + under.start * width..],
                    rows: CHANNEL_BLOCK.min(channels - first),
                    cols: under.len() * width,
                    transposed: false,
                };
                let pixels = &mut scratch[..planes.cols * CHANNEL_BLOCK];
                interleave_channels(Strided { mat: planes, stride: height * width }, pixels)?;
                T::Sum::vectorised(Evaluate::<_, R, N, NN> {
                    transform: PhantomData::<R>,
                    tiling,
                    rows: rows.clone(),
                    pixels,
                    first_row: under.start,
                    values: &mut values,
                    tiles,
                    at,
                });
                at += rows.len() * across;
            }
            Ok(())
        })
    }

    /// The results for some rows of tiles, whose values at the points are there.
    fn multiply<T: ConvElement>(
        &self,
        cx: &Cx,
        filters: &[T],
        (rows, values): (&Range<usize>, &[T::Sum]),
        y: &mut [T::Sum],
        scratch: &mut [T::Sum],
    ) -> Result<()> {
        let ([from, to], [height, width], across) = (self.channels, self.tiling.y, self.tiling.tiles()[1]);
        let (share, depth, tiles) = (self.filters(), in_blocks(from), rows.len() * across);
        let (pixels, all) = (height * width, self.groups * to);
        let y = DividedMat { data: y, cols: all * pixels, part: [self.images, share * pixels] };
        cx.try_zip_submatrices_mut([y], scratch, |[_, part], [mut y], scratch| {
            let first = part * share;
            let n = share.min(all - first);
            let [elements, at_points, products, block] = divided(scratch, self.parts());
            let at_points = &mut at_points[..POINTS_2D * depth * in_blocks(n)];
            let products = &mut products[..POINTS_2D * tiles * in_blocks(n)];
            for filter in (0..n).step_by(CHANNEL_BLOCK) {
                let own = first + filter..first + n.min(filter + CHANNEL_BLOCK);
                self.evaluate_filters(filters, own, elements, (&mut at_points[filter..], in_blocks(n)))?;
            }
            let values = &values[first / to * depth..];
            multiply(cx, (values, self.width(from)), (at_points, depth), products)?;
            for filter in (0..n).step_by(CHANNEL_BLOCK) {
                let mut at = 0;
                for (image, rows) in self.images_of(rows) {
                    let top = rows.start * TILE;
                    let cols = (rows.len() * TILE).min(height - top) * width;
                    let block = &mut block[..cols * CHANNEL_BLOCK];
                    at += rows.len() * across;
                    T::Sum::vectorised(Interpolate {
                        tiling: self.tiling,
                        products: &products[filter..],
                        size: [tiles, in_blocks(n)],
                        at: at - rows.len() * across,
                        rows,
                        bias: &[T::Sum::ZERO; CHANNEL_BLOCK],
                        bounds: unbounded(),
                        pixels: block,
                    });
                    let y = &mut y.row(image)[filter * pixels + top * width..];
                    let size = [CHANNEL_BLOCK.min(n - filter), cols];
                    separate_channels(block, &mut SubmatrixMut::of(y, size, pixels)?)?;
                }
            }
            Ok(())
        })
    }

    /// The values of a block of filters at the points, among filters of such a number.
    fn evaluate_filters<T: ConvElement>(
        &self,
        filters: &[T],
        own: Range<usize>,
        elements: &mut [T::Sum],
        (values, width): (&mut [T::Sum], usize),
    ) -> Result<()> {
        const ELEMENTS: usize = WINDOW_2D * CHANNEL_BLOCK;
        let ([from, to], share) = (self.channels, in_blocks(self.channels[0]) * width);
        let (group, lanes) = (own.start / to, own.len());
        let planes = |start: usize, cols| Mat {
            data: &filters[start * WINDOW_2D..],
            rows: lanes,
            cols,
            transposed: false,
        };
        for first in (0..from).step_by(CHANNEL_BLOCK) {
            let channels = CHANNEL_BLOCK.min(from - first);
            if self.mirrored {
                for (channel, elements) in elements.chunks_mut(ELEMENTS).take(channels).enumerate() {
                    let start = (group * from + first + channel) * to + own.start % to;
                    interleave_channels(planes(start, WINDOW_2D).into(), elements)?;
                }
            } else {
                let planes = planes(own.start * from + first, channels * WINDOW_2D);
                let planes = Strided { mat: planes, stride: from * WINDOW_2D };
                interleave_channels(planes, &mut elements[..channels * ELEMENTS])?;
            }
            T::Sum::vectorised(EvaluateFilters {
                filters: elements,
                steps: [ELEMENTS, CHANNEL_BLOCK],
                channels,
                mirrored: self.mirrored,
                values: &mut values[first * width..],
                share,
                width,
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::mem;

    use super::*;
    use crate::{conv::image_layout::ImageLayout, windows::Windows};

    /// Numbers of single precision.
    fn numbers(n: usize, seed: usize) -> Vec<f64> {
        // SplitMix64.
        let bits = |i: usize| {
            let x = (i as u64 + ((seed as u64) << 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            x ^ (x >> 31)
        };
        (0..n).map(|i| f64::from((bits(i) >> 40) as f32 / (1 << 23) as f32 - 1.0)).collect()
    }

    fn singles(numbers: &[f64]) -> Vec<f32> {
        numbers.iter().map(|x| *x as f32).collect()
    }

    /// A sum of products of single precision, in blocks of 512 terms as of other products.
    #[derive(Default)]
    struct Chain {
        blocks: f32,
        block: f32,
        terms: usize,
    }

    impl Chain {
        fn add(&mut self, x: f64, y: f64) {
            self.block = (x as f32).mul_add(y as f32, self.block);
            self.terms += 1;
            if self.terms.is_multiple_of(512) {
                self.blocks += mem::take(&mut self.block);
            }
        }

        fn sum(&self) -> f32 {
            self.blocks + self.block
        }
    }

    /// Squares of rounding errors of single precision.
    #[derive(Default)]
    struct Errors {
        winograd: f64,
        chain: f64,
    }

    impl Errors {
        fn add(&mut self, sum: f64, winograd: f32, chain: &Chain) {
            self.winograd += (f64::from(winograd) - sum).powi(2);
            self.chain += (f64::from(chain.sum()) - sum).powi(2);
        }

        /// How many times as large the errors of the algorithm are.
        fn ratio(&self) -> f64 {
            (self.winograd / self.chain).sqrt()
        }
    }

    /// Compares with sums of products; the gradient of images is compared by `⟨conv(x), dy⟩ = ⟨x, dx⟩`. Returns the errors of results and
    /// of gradients of filters.
    fn check(
        images: usize,
        groups: usize,
        channels: [usize; 2],
        x: [usize; 2],
        [before, after]: [usize; 2],
    ) -> [Errors; 2] {
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
        let [mut errors, mut errors_of_filters] = [Errors::default(), Errors::default()];
        let forward = conv.as_winograd(false).expect("windows of 3 × 3, one apart");
        let (mut single, mut single_gradient) = (vec![f32::NAN; dy.len()], vec![f32::NAN; filters.len()]);
        let cx = Cx::new(1);
        forward.run(&cx, &singles(&input), &singles(&filters), &mut single).expect("sizes are right");
        forward
            .filter_gradient(&cx, &singles(&input), &singles(&dy), &mut single_gradient)
            .expect("sizes are right");
        let output = run(false, &input, dy.len(), 1);
        assert_eq!(output, run(false, &input, dy.len(), 2), "the same bits on two threads");
        for (at, output) in output.iter().enumerate() {
            let (map, pixel) = (at / (y[0] * y[1]), [at / y[1] % y[0], at % y[1]]);
            let (unit, filter) = (map / channels[1], map % channels[1]);
            let (mut sum, mut chain) = (0.0, Chain::default());
            for channel in 0..channels[0] {
                let filter = (unit % groups * channels[1] + filter) * channels[0] + channel;
                for tap in 0..WINDOW_2D {
                    let [row, col] = [0, 1].map(|i| pixel[i] + [tap / WINDOW, tap % WINDOW][i]);
                    if (before..before + x[0]).contains(&row) && (before..before + x[1]).contains(&col) {
                        let row = (unit * channels[0] + channel) * x[0] + row - before;
                        let (filter, x) =
                            (filters[filter * WINDOW_2D + tap], input[row * x[1] + col - before]);
                        sum += filter * x;
                        chain.add(filter, x);
                    }
                }
            }
            errors.add(sum, single[at], &chain);
            assert!((output - sum).abs() < 1e-12, "{output} is not {sum}: {images} images of {x:?}");
        }
        let mut gradient = vec![f64::NAN; filters.len()];
        forward.filter_gradient(&cx, &input, &dy, &mut gradient).expect("sizes are right");
        for (at, gradient) in gradient.iter().enumerate() {
            let [tap, channel, filter] =
                [at % WINDOW_2D, at / WINDOW_2D % channels[0], at / (WINDOW_2D * channels[0])];
            let (group, [down, across]) = (filter / channels[1], [tap / WINDOW, tap % WINDOW]);
            let (mut sum, mut chain) = (0.0, Chain::default());
            for (unit, pixel) in
                (0..images).flat_map(|i| (0..y[0] * y[1]).map(move |at| (i * groups + group, at)))
            {
                let [row, col] = [pixel / y[1] + down, pixel % y[1] + across];
                if (before..before + x[0]).contains(&row) && (before..before + x[1]).contains(&col) {
                    let row = (unit * channels[0] + channel) * x[0] + row - before;
                    let dy = dy[(unit * channels[1] + filter % channels[1]) * y[0] * y[1] + pixel];
                    let x = input[row * x[1] + col - before];
                    sum += dy * x;
                    chain.add(dy, x);
                }
            }
            errors_of_filters.add(sum, single_gradient[at], &chain);
            assert!((gradient - sum).abs() < 1e-9, "{gradient} is not {sum}: {images} images of {x:?}");
        }
        let dot = |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(x, y)| x * y).sum::<f64>();
        let dx = run(true, &dy, input.len(), 1);
        let (one, other) = (dot(&output, &dy), dot(&input, &dx));
        assert!((one - other).abs() < 1e-9, "{one} is not {other}");
        [errors, errors_of_filters]
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
        // Several parts of filters, also of groups.
        check(2, 1, [3, 40], [6, 5], [1, 1]);
        check(1, 2, [2, 40], [5, 6], [1, 1]);
        // Several blocks, whose borders are not those of images.
        check(3, 1, [40, 33], [60, 60], [1, 1]);
    }

    #[test]
    fn rounding_errors_are_two_to_three_times_as_large() {
        for (images, channels, [height, width]) in [
            (8, [512, 4], [4, 4]),
            (8, [256, 4], [7, 7]),
            (2, [128, 4], [14, 14]),
            (1, [64, 4], [28, 28]),
            (8, [64, 16], [4, 4]),
        ] {
            let [results, filters] = check(images, 1, channels, [height, width], [1, 1]).map(|e| e.ratio());
            println!(
                "{images} images, {channels:?} channels, {height} × {width}: {results:.2}, {filters:.2}"
            );
            assert!(results < 3.0 && filters < 3.5, "{results} and {filters} times");
        }
    }
}
