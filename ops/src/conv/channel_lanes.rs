//! Convolution of single channels with one filter each, several channels at a time: the lanes of vectors are channels. Rows
//! of small planes have fewer windows than vectors have lanes.
#![allow(clippy::needless_range_loop)] // Indexed loops are vectorised.

use autobwd::{
    Cx, Error, ErrorKind, Result,
    op::{
        CHANNEL_BLOCK, DividedMat, LaneOf, Strided, VectorLoops, Vectorised, interleave_channels,
        separate_channels,
    },
};

use super::{
    gemm_conv::{ConvPart, Convolution},
    image_layout::ImageLayout,
    storage::ConvElement,
};
use crate::{
    kernel_helpers::{KernelFloat, divided, matrix, nth, unbounded},
    norm::DataLayout,
    padded_images::PaddedImages,
    windows::Windows,
};

/// Channels of a block from which lanes of vectors are used well enough.
const LEAST: usize = 8;
/// The most elements of a copied image, such that it stays in the cache.
const COPIED: usize = 1 << 16;
/// The most elements of a window.
const TAPS: usize = 64;
/// Products that a lane adds up before they are added in `f64`.
const TERMS: usize = 256;

/// A convolution of single channels.
pub(super) struct ChannelLanes<'a> {
    conv: &'a Convolution,
    /// Channels of a block.
    channels: usize,
    /// Images whose windows are products, or `x` for the gradient of filters.
    images: PaddedImages,
}

impl Convolution {
    /// That part of the convolution, if its channels are planes with a filter each.
    pub(super) fn channel_lanes<T: ConvElement>(&self, part: ConvPart) -> Option<ChannelLanes<'_>> {
        let is_single = self.x.format == DataLayout::Nchw && self.x.channels == 1 && self.y.channels == 1;
        if !T::IN_PLACE || !is_single || self.is_nothing() {
            return None;
        }
        let channels = (LEAST..=CHANNEL_BLOCK).rev().find(|n| self.groups.is_multiple_of(*n))?;
        let images = match part {
            ConvPart::DataGrad => self.spread()?,
            _ => PaddedImages { size: self.x.size, apart: [1; 2], windows: self.windows, count: self.y.size },
        };
        let fits = images.len() <= COPIED && self.columns().window() <= TAPS;
        fits.then_some(ChannelLanes { conv: self, channels, images })
    }

    /// The windows of the convolution that computes the gradient of images: over `dy` with zeros between its elements, with
    /// the mirrored filter.
    fn spread(&self) -> Option<PaddedImages> {
        let [down, across] = self.windows.map(|windows| {
            let before = (windows.extent() - 1).checked_sub(windows.before)?;
            Some(Windows { stride: 1, before, after: 0, ..windows })
        });
        let apart = self.windows.map(|windows| windows.stride);
        Some(PaddedImages { size: self.y.size, apart, windows: [down?, across?], count: self.x.size })
    }
}

impl ChannelLanes<'_> {
    /// Scratch elements of a worker: an image, its copy, results or their gradients, and filters.
    pub(super) fn scratch(&self) -> usize {
        self.parts().into_iter().fold(0, usize::saturating_add)
    }

    fn parts(&self) -> [usize; 4] {
        let of_image = |side: &ImageLayout| side.pixels().saturating_mul(CHANNEL_BLOCK);
        [
            of_image(&self.conv.x),
            self.images.len(),
            of_image(&self.conv.y),
            self.conv.columns().window() * CHANNEL_BLOCK,
        ]
    }

    /// The planes of a block of channels, which are so many elements.
    fn planes<'a, T>(&self, all: &'a [T], block: usize, len: usize) -> Strided<'a, T> {
        matrix(nth(all, block, len), len / self.channels).into()
    }

    /// Sets `out` to the products of the windows over the images `from` with the filters, which are mirrored for the gradient
    /// of images.
    pub(super) fn products<T: ConvElement>(
        &self,
        cx: &Cx,
        part: ConvPart,
        (from, filters): (&[T], &[T]),
        out: &mut [T],
    ) -> Result<()> {
        let (from, filters) = (in_sums(from)?, in_sums(filters)?);
        let (pixels, taps) = (self.images.count[0] * self.images.count[1], self.conv.columns().window());
        let [from_len, filter_len] =
            [self.images.size[0] * self.images.size[1], taps].map(|n| n * self.channels);
        let blocks = self.conv.groups / self.channels;
        T::summed(cx, out, &mut [], |out| {
            let out = DividedMat { data: out, cols: pixels, part: [self.channels, pixels] };
            cx.scratch(self.scratch() * cx.threads(), |scratch| {
                cx.try_zip_submatrices_mut([out], scratch, |[block, _], [mut out], scratch| {
                    let [x, copy, y, filter] = divided(scratch, self.parts());
                    let (image, results) = if part == ConvPart::DataGrad { (y, x) } else { (x, y) };
                    interleave_channels(self.planes(from, block, from_len), image)?;
                    self.images.copy(image, copy);
                    interleave_channels(self.planes(filters, block % blocks, filter_len), filter)?;
                    if part == ConvPart::DataGrad {
                        filter.as_chunks_mut::<CHANNEL_BLOCK>().0.reverse();
                    }
                    let bias = [T::Sum::of(0.0); CHANNEL_BLOCK];
                    self.images.products(copy, (filter, &bias, unbounded())).write(results)?;
                    separate_channels(results, &mut out)
                })
            })
        })
    }

    /// The gradient of all filters.
    pub(super) fn correlate<T: ConvElement>(
        &self,
        cx: &Cx,
        (x, dy): (&[T], &[T]),
        dfilters: &mut [T],
    ) -> Result<()> {
        let (x, dy) = (in_sums(x)?, in_sums(dy)?);
        let [x_pixels, y_pixels] = [&self.conv.x, &self.conv.y].map(ImageLayout::pixels);
        let (taps, blocks) = (self.conv.columns().window(), self.conv.groups / self.channels);
        cx.scratch(self.scratch() * cx.threads(), |scratch| {
            cx.try_chunks_mut(dfilters, self.channels * taps, scratch, |block, dfilters, scratch| {
                let [image, copy, gradients, _] = divided(scratch, self.parts());
                let mut sums = [[0.0; CHANNEL_BLOCK]; TAPS];
                for image_number in 0..self.conv.images {
                    let block = image_number * blocks + block;
                    interleave_channels(self.planes(x, block, self.channels * x_pixels), image)?;
                    self.images.copy(image, copy);
                    interleave_channels(self.planes(dy, block, self.channels * y_pixels), gradients)?;
                    T::Sum::vectorised(Correlation { images: self.images, copy, gradients, sums: &mut sums });
                }
                for (channel, dfilter) in dfilters.chunks_mut(taps).enumerate() {
                    dfilter
                        .iter_mut()
                        .zip(&sums)
                        .for_each(|(out, sums)| *out = T::rounded(T::Sum::of(sums[channel])));
                }
                Ok(())
            })
        })
    }
}

/// Elements as numbers of the type of sums, which [`channel_lanes`](Convolution::channel_lanes) requires.
fn in_sums<T: ConvElement>(elements: &[T]) -> Result<&[T::Sum]> {
    T::as_sums(elements).ok_or_else(|| Error::new(ErrorKind::DType, "elements of 16 bits are rounded"))
}

/// Adds the products of the elements under windows with the gradients of the windows, for each element of a window.
struct Correlation<'a, T> {
    images: PaddedImages,
    /// An image with padding.
    copy: &'a [T],
    gradients: &'a [T],
    sums: &'a mut [[f64; CHANNEL_BLOCK]; TAPS],
}

impl<T: KernelFloat> VectorLoops<T> for Correlation<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<F: LaneOf<T>>(mut self) {
        let taps = self.images.windows[1].size;
        let mut tap = 0;
        while tap < taps {
            // The lanes of more elements do not stay in registers.
            tap += match taps - tap {
                3.. => self.add::<F, 3>(tap),
                2 => self.add::<F, 2>(tap),
                _ => self.add::<F, 1>(tap),
            };
        }
    }
}

impl<T: KernelFloat> Correlation<'_, T> {
    /// Adds the products of `W` adjacent elements of each row of windows, from `tap` on; returns how many.
    #[inline(always)]
    fn add<F: LaneOf<T>, const W: usize>(&mut self, tap: usize) -> usize {
        let PaddedImages { windows: [down, across], count: [rows, columns], .. } = self.images;
        let width = self.images.padded()[1];
        let pixels = self.copy.as_chunks::<CHANNEL_BLOCK>().0;
        let gradients = self.gradients.as_chunks::<CHANNEL_BLOCK>().0;
        let band = (TERMS / columns).max(1);
        for first in (0..rows).step_by(band) {
            for tap_row in 0..down.size {
                let mut lanes = [[F::from(0.0); CHANNEL_BLOCK]; W];
                for row in first..rows.min(first + band) {
                    let under = (row * down.stride + tap_row * down.dilation) * width + tap * across.dilation;
                    let (under, gradients) = (&pixels[under..], &gradients[row * columns..][..columns]);
                    for (column, gradient) in gradients.iter().enumerate() {
                        for w in 0..W {
                            let pixel = &under[column * across.stride + w * across.dilation];
                            for l in 0..CHANNEL_BLOCK {
                                lanes[w][l] = lanes[w][l] + F::new(pixel[l]) * F::new(gradient[l]);
                            }
                        }
                    }
                }
                for w in 0..W {
                    let sums = &mut self.sums[tap_row * across.size + tap + w];
                    for l in 0..CHANNEL_BLOCK {
                        sums[l] += lanes[w][l].get().into();
                    }
                }
            }
        }
        W
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Integers, whose sums are exact.
    fn integers(n: usize, step: usize) -> Vec<f64> {
        (0..n).map(|i| (i * step % 17) as f64 - 8.0).collect()
    }

    #[test]
    fn each_part_adds_up_the_products_under_the_windows() -> Result<()> {
        // Images, channels, rows and columns; and size, stride, padding, dilation of the windows.
        for ([images, groups, height, width], [size, stride, before, dilation]) in [
            ([2, 32, 4, 5], [3, 1, 1, 1]),
            ([1, 24, 7, 6], [5, 2, 2, 1]),
            // More than are added up in a lane.
            ([1, 8, 21, 19], [3, 1, 0, 1]),
            ([3, 9, 8, 9], [2, 3, 1, 2]),
            ([1, 10, 9, 8], [7, 1, 3, 1]),
        ] {
            let windows = [Windows { size, stride, dilation, before, after: before }; 2];
            let x_size = [height, width];
            let y_size = [0, 1].map(|i| windows[i].count(x_size[i], false).unwrap_or(0));
            let side = |size| ImageLayout { channels: 1, size, inside: 1, format: DataLayout::Nchw };
            let conv = Convolution { images, groups, x: side(x_size), y: side(y_size), windows };
            for part in [ConvPart::Forward, ConvPart::DataGrad, ConvPart::FilterGrad] {
                assert!(conv.channel_lanes::<f64>(part).is_some(), "{groups} channels, windows of {size}");
            }
            let planes = images * groups;
            let lens = [height * width, y_size[0] * y_size[1], size * size];
            let (x, dy) = (integers(planes * lens[0], 5), integers(planes * lens[1], 3));
            let filters = integers(groups * lens[2], 7);
            let mut expected = [vec![0.0; dy.len()], vec![0.0; x.len()], vec![0.0; filters.len()]];
            for plane in 0..planes {
                for (window, tap) in
                    (0..lens[1]).flat_map(|window| (0..lens[2]).map(move |tap| (window, tap)))
                {
                    let under = |window: usize, tap: usize, len: usize| {
                        (window * stride + tap * dilation).checked_sub(before).filter(|at| *at < len)
                    };
                    let row = under(window / y_size[1], tap / size, height);
                    let column = under(window % y_size[1], tap % size, width);
                    let (Some(row), Some(column)) = (row, column) else { continue };
                    let (at, window) = (plane * lens[0] + row * width + column, plane * lens[1] + window);
                    let tap = plane % groups * lens[2] + tap;
                    expected[0][window] += x[at] * filters[tap];
                    expected[1][at] += dy[window] * filters[tap];
                    expected[2][tap] += dy[window] * x[at];
                }
            }
            let cx = Cx::new(2);
            let mut found = expected.clone().map(|numbers| vec![f64::NAN; numbers.len()]);
            conv.forward(&cx, &x, &filters, &mut found[0])?;
            conv.data_grad(&cx, &filters, &dy, &mut found[1])?;
            conv.filter_grad(&cx, &x, &dy, &mut found[2])?;
            assert_eq!(found, expected, "{images} images, {groups} channels, windows of {size}");
        }
        Ok(())
    }
}
