//! The gradient of filters by Winograd's algorithm, the transpose of the convolution.
//!
//! Pixels of `dy` are mapped to the points by the transpose of interpolation. The products with the values of `x` there,
//! summed over tiles, are matrix products, and the transpose of the evaluation of filters maps their sums to filters.

use std::marker::PhantomData;

use autobwd::{
    Cx, Result,
    op::{Mat, Strided, Vectorised},
};

use super::{
    PIXELS_2D, POINTS, POINTS_2D, TILE, WINDOW_2D, Winograd, slices, slices_mut,
    tiles::TiledImages,
    transforms::{AtPoints, FilterFromPoints, PixelsAtPoints, Squares},
};
use crate::{
    conv::{gemm_conv::ConvPart, storage::ConvElement},
    kernel_helpers::{KernelFloat, PART, nth},
};

/// Tiles whose products are summed together. The map to filters multiplies the rounding errors of the sums, so these are
/// sums of short sums: their errors are three times the errors of sums of products, instead of six times.
const SUMMED: usize = 64;

impl Winograd {
    /// Scratch elements of the sums at the points, of a block of `x` and of `y` at the points, and of each worker.
    pub(super) fn filter_gradient_scratch(&self) -> ([usize; 3], usize) {
        let ([_, of_x, of_y], each) = self.scratch();
        ([self.products(), of_x, of_y], each.max(WINDOW_2D * self.channels[0]))
    }

    /// Products of channels and filters of a group at all points.
    fn products(&self) -> usize {
        let [channels, filters] = self.channels;
        channels.saturating_mul(filters).saturating_mul(POINTS_2D)
    }

    /// `dfilters` = the gradient of the filters.
    pub(in crate::conv) fn filter_gradient<T: ConvElement>(
        &self,
        cx: &Cx,
        x: &[T],
        dy: &[T],
        dfilters: &mut [T],
    ) -> Result<()> {
        let ([of_products, of_x, of_y], _) = self.filter_gradient_scratch();
        let ([down, across], [channels, filters]) = (self.tiles(), self.channels);
        let (input, pixels) = (
            self.input(x),
            TiledImages { winograd: self, data: dy, channels: filters, size: self.y, before: [0; 2] },
        );
        cx.scratch(self.scratch_len(ConvPart::FilterGrad, cx.threads()), |scratch| {
            let (products, scratch) = scratch.split_at_mut(of_products);
            let (v, scratch) = scratch.split_at_mut(of_x);
            let (w, scratch) = scratch.split_at_mut(of_y);
            let all = self.images * down;
            for (group, dfilters) in dfilters.chunks_mut(filters * channels * WINDOW_2D).enumerate() {
                for start in (0..all).step_by(self.block()) {
                    let rows = start..all.min(start + self.block());
                    let tiles = rows.len() * across;
                    let (v, w) =
                        (&mut v[..POINTS_2D * channels * tiles], &mut w[..POINTS_2D * filters * tiles]);
                    input.at_points::<AtPoints, POINTS, POINTS_2D>(cx, (group, &rows), v, scratch)?;
                    pixels.at_points::<PixelsAtPoints, TILE, PIXELS_2D>(cx, (group, &rows), w, scratch)?;
                    self.multiply_tiles(cx, (v, w), start > 0, products)?;
                }
                self.interpolate_filters(cx, products, dfilters, scratch)?;
            }
            Ok(())
        })
    }

    /// For every point, `products = w · vᵀ`, or the sum with what `products` holds.
    fn multiply_tiles<T: KernelFloat>(
        &self,
        cx: &Cx,
        (v, w): (&[T], &[T]),
        add: bool,
        products: &mut [T],
    ) -> Result<()> {
        let [channels, filters] = self.channels;
        let tiles = v.len() / (POINTS_2D * channels);
        cx.try_chunks_mut(products, channels * filters, &mut [] as &mut [T], |point, products, _| {
            for start in (0..tiles).step_by(SUMMED) {
                let part = |values, rows| {
                    let data = &nth(values, point, rows * tiles)[start..];
                    let mat = Mat { data, rows, cols: SUMMED.min(tiles - start), transposed: false };
                    Strided { mat, stride: tiles }
                };
                let (w, v) = (part(w, filters), part(v, channels));
                cx.product_strided(products, channels, add || start > 0, w, v.t())?;
            }
            Ok(())
        })
    }

    /// The filters of sums at the points, `[points, filters, channels]`.
    fn interpolate_filters<T: ConvElement>(
        &self,
        cx: &Cx,
        products: &[T::Sum],
        dfilters: &mut [T],
        scratch: &mut [T::Sum],
    ) -> Result<()> {
        let [channels, filters] = self.channels;
        let share = PART.div_ceil(POINTS_2D * channels);
        let len = channels * WINDOW_2D;
        cx.try_chunks_mut(dfilters, share * len, scratch, |part, dfilters, scratch| {
            for (i, dfilter) in dfilters.chunks_mut(len).enumerate() {
                let start = (part * share + i) * channels;
                let from = slices::<_, POINTS_2D>(products, filters * channels)
                    .map(|point| &point[start..][..channels]);
                let to = slices_mut::<_, WINDOW_2D>(scratch, channels);
                T::Sum::vectorised(Squares { transform: PhantomData::<FilterFromPoints>, from, to });
                for (element, sums) in slices::<_, WINDOW_2D>(scratch, channels).into_iter().enumerate() {
                    let elements = dfilter[element..].iter_mut().step_by(WINDOW_2D);
                    elements.zip(sums).for_each(|(to, sum)| *to = T::rounded(*sum));
                }
            }
            Ok(())
        })
    }
}
