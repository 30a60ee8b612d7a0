//! The gradient of filters by Winograd's algorithm, the transpose of the convolution.
//!
//! Pixels of `dy` are mapped to the points by the transpose of interpolation. The products with the values of `x` there,
//! summed over tiles, are matrix products, and the transpose of the evaluation of filters maps their sums to filters.

use autobwd::{
    Cx, Result,
    op::{CHANNEL_BLOCK, Mat, Strided, SubmatrixMut, separate_channels},
};

use super::{Images, Winograd, in_blocks};
use crate::{
    conv::{gemm_conv::ConvPart, storage::ConvElement},
    kernel_helpers::KernelFloat,
    winograd::{
        AtPoints, InterpolateFilter, PIXELS_2D, POINTS, POINTS_2D, PixelsAtPoints, SUMMED, TILE, WINDOW_2D,
    },
};

impl Winograd {
    /// Elements of the sums of products, at all points, of the filters of a part.
    fn sums(&self) -> usize {
        (POINTS_2D * self.filters()).saturating_mul(in_blocks(self.channels[0]))
    }

    /// Scratch elements of the values of a block of `x` and of `dy`, and of sums that several blocks of tiles add to with the sums
    /// that are rounded; and of each worker.
    pub(super) fn filter_gradient_scratch<T: ConvElement>(&self) -> ([usize; 3], usize) {
        let [channels, filters] = self.channels;
        let (all, of_element) = (self.groups * filters, in_blocks(channels) * WINDOW_2D);
        let kept = match self.blocks().count() {
            1 => 0,
            _ => all.div_ceil(self.filters()).saturating_mul(self.sums()),
        };
        let rounded = T::sums(all.saturating_mul(channels * WINDOW_2D));
        let planes = [self.tiling, self.tiling.of_results()].map(|tiling| self.plane(&tiling));
        let each = planes.into_iter().fold(self.sums() + of_element, usize::max);
        ([self.values(channels), self.values(filters), kept.saturating_add(rounded)], each)
    }

    /// `dfilters` = the gradient of the filters.
    pub(in crate::conv) fn filter_gradient<T: ConvElement>(
        &self,
        cx: &Cx,
        x: &[T],
        dy: &[T],
        dfilters: &mut [T],
    ) -> Result<()> {
        let ([of_x, of_y, sums], _) = self.filter_gradient_scratch::<T>();
        let rounded = T::sums(dfilters.len());
        let dy = Images { data: dy, channels: self.channels[1], tiling: self.tiling.of_results() };
        cx.scratch(self.scratch_len::<T>(ConvPart::FilterGrad, cx.threads()), |scratch| {
            let (v, scratch) = scratch.split_at_mut(of_x);
            let (w, scratch) = scratch.split_at_mut(of_y);
            let (kept, scratch) = scratch.split_at_mut(sums - rounded);
            let (rounded, scratch) = scratch.split_at_mut(rounded);
            T::summed(cx, dfilters, rounded, |dfilters| {
                for (number, rows) in self.blocks().enumerate() {
                    self.evaluate::<T, AtPoints, POINTS, POINTS_2D>(cx, &self.x(x), &rows, v, scratch)?;
                    self.evaluate::<T, PixelsAtPoints, TILE, PIXELS_2D>(cx, &dy, &rows, w, scratch)?;
                    let tiles = rows.len() * self.tiling.tiles()[1];
                    let is_last = rows.end == self.images * self.tiling.tiles()[0];
                    let to = (is_last, &mut *dfilters);
                    self.multiply_tiles(cx, (v, w, tiles), number > 0, &mut *kept, to, scratch)?;
                }
                Ok(())
            })
        })
    }

    /// Adds the products of so many tiles, summed at every point, to what `kept` holds; writes the filters of the sums after the
    /// last ones. Without `kept`, these are all tiles.
    fn multiply_tiles<T: KernelFloat>(
        &self,
        cx: &Cx,
        (v, w, tiles): (&[T], &[T], usize),
        add: bool,
        kept: &mut [T],
        (is_last, dfilters): (bool, &mut [T]),
        scratch: &mut [T],
    ) -> Result<()> {
        let [channels, filters] = self.channels;
        let (share, depth, len) = (self.filters(), in_blocks(channels), channels * WINDOW_2D);
        let [of_v, of_w] = self.channels.map(|channels| self.width(channels));
        let parts = [(dfilters, share * len), (kept, self.sums())];
        cx.try_zip_chunks_mut(parts, scratch, |part, [dfilters, kept], scratch| {
            let (group, first, n) = (part * share / filters, part * share % filters, dfilters.len() / len);
            let (own, elements) = scratch.split_at_mut(self.sums());
            let sums = if kept.is_empty() { own } else { kept };
            for (point, sums) in sums.chunks_mut(share * depth).enumerate() {
                for start in (0..tiles).step_by(SUMMED) {
                    let (at, rows) = (point * tiles + start, SUMMED.min(tiles - start));
                    let w = &w[at * of_w + group * in_blocks(filters) + first..];
                    let w = Mat { data: w, rows, cols: n, transposed: true };
                    let v = Mat {
                        data: &v[at * of_v + group * depth..],
                        rows,
                        cols: channels,
                        transposed: false,
                    };
                    let (w, v) = (Strided { mat: w, stride: of_w }, Strided { mat: v, stride: of_v });
                    cx.product_strided(sums, depth, add || start > 0, w, v)?;
                }
            }
            if !is_last {
                return Ok(());
            }
            for (filter, dfilter) in dfilters.chunks_mut(len).enumerate() {
                let (sums, elements) = (&sums[filter * depth..], &mut elements[..depth * WINDOW_2D]);
                T::vectorised(InterpolateFilter { sums, share: share * depth, elements: &mut *elements });
                let blocks = elements.chunks(CHANNEL_BLOCK * WINDOW_2D);
                for (dfilter, block) in dfilter.chunks_mut(CHANNEL_BLOCK * WINDOW_2D).zip(blocks) {
                    let size = [dfilter.len() / WINDOW_2D, WINDOW_2D];
                    separate_channels(block, &mut SubmatrixMut::of(dfilter, size, WINDOW_2D)?)?;
                }
            }
            Ok(())
        })
    }
}
