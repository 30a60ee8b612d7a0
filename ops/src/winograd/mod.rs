//! Winograd's algorithm for convolutions with windows of 3 × 3 elements, one apart: 36 multiplications for 16 pixels instead
//! of 144.
//!
//! The results are divided into tiles of 4 × 4 pixels. As polynomials, the 6 × 6 elements under the windows of a tile, and the
//! filters, are evaluated at points; the products at each point, summed over channels, are a matrix product; interpolation
//! gives the pixels (A. Lavin, S. Gray, "Fast Algorithms for Convolutional Neural Networks", 2016).
//! The points are 0, ±√½, ±√2 and ∞. With them, rounding errors are twice as large as of sums of products; with 0, ±1, ±2
//! and ∞, they are five times as large (S. Alam et al., "Winograd Convolution for Deep Neural Networks: Efficient Point
//! Selection", 2022). The gradient of the filters is the transpose of the algorithm.
//!
//! Channels, and filters, are the lanes of vectors: images are in blocks of channels. Values of images at the points are
//! matrices `[points, tiles, channels]`, values of filters `[points, channels, filters]`. Those of a few filters are
//! computed where they are multiplied, and stay in the caches: values are four times as many as elements.

mod filters;
mod images;
mod transforms;

use std::ops::Range;

use autobwd::{
    Cx, Result,
    op::{CHANNEL_BLOCK, Mat, Strided},
};

use crate::{
    kernel_helpers::{KernelFloat, nth},
    windows::Windows,
};
pub(crate) use filters::{EvaluateFilters, InterpolateFilter};
pub(crate) use images::{Evaluate, Interpolate};
pub(crate) use transforms::{AtPoints, FromPoints, PixelsAtPoints, Transform, factors};

/// Pixels of a tile and elements of a window, vertically and horizontally.
pub(crate) const TILE: usize = 4;
pub(crate) const WINDOW: usize = 3;
pub(crate) const POINTS: usize = TILE + WINDOW - 1;
/// The same in two dimensions.
pub(crate) const PIXELS_2D: usize = TILE * TILE;
pub(crate) const WINDOW_2D: usize = WINDOW * WINDOW;
pub(crate) const POINTS_2D: usize = POINTS * POINTS;
/// Filters that are evaluated, and multiplied, together: two blocks.
pub(crate) const FILTERS: usize = 2 * CHANNEL_BLOCK;
/// Terms whose products are summed together: channels, or tiles for the gradient of filters. Interpolation multiplies the
/// rounding errors of the sums, so these are sums of short sums: errors stay two to three times as large as of sums of
/// products in blocks of 512 terms, instead of six times for many channels.
pub(crate) const SUMMED: usize = 64;
/// Tiles for which filters are multiplied as long as they take to be evaluated.
const EVALUATION: usize = 8;

/// The windows over an image, in tiles.
#[derive(Clone, Copy)]
pub(crate) struct Tiling {
    /// Rows and columns of the image.
    pub(crate) x: [usize; 2],
    /// Rows and columns of windows.
    pub(crate) y: [usize; 2],
    /// Padding above and to the left.
    pub(crate) before: [usize; 2],
}

impl Tiling {
    /// The windows over an image of that size, if the algorithm applies to them.
    pub(crate) fn of(windows: &[Windows; 2], x: [usize; 2], y: [usize; 2]) -> Option<Tiling> {
        let fits = |w: &Windows| (w.size, w.stride, w.dilation) == (WINDOW, 1, 1) && w.before < WINDOW;
        windows.iter().all(fits).then(|| Tiling { x, y, before: windows.map(|w| w.before) })
    }

    /// Tiles, vertically and horizontally.
    pub(crate) fn tiles(&self) -> [usize; 2] {
        self.y.map(|len| len.div_ceil(TILE))
    }

    /// Whether there are at most half as many multiplications for so many images, the evaluation of filters included.
    pub(crate) fn saves_multiplications(&self, images: usize) -> bool {
        let [pixels, tiles] =
            [self.y, self.tiles()].map(|[down, across]| images.saturating_mul(down.saturating_mul(across)));
        let needed = tiles.saturating_add(EVALUATION).saturating_mul(POINTS_2D);
        needed.saturating_mul(2) <= pixels.saturating_mul(WINDOW_2D)
    }

    /// Rows of the image under the windows of some rows of tiles.
    pub(crate) fn rows_under(&self, tiles: &Range<usize>) -> Range<usize> {
        let end = (tiles.end * TILE + WINDOW - 1).saturating_sub(self.before[0]).min(self.x[0]);
        (tiles.start * TILE).saturating_sub(self.before[0]).min(end)..end
    }

    /// The tiles themselves, as images.
    pub(crate) fn of_results(&self) -> Tiling {
        Tiling { x: self.y, before: [0; 2], ..*self }
    }
}

/// For every point, `products`, `[points, tiles, filters]`, is the matrix product of the values of tiles and of filters. The
/// values of tiles are rows of so many channels, `stride` elements apart.
pub(crate) fn multiply<T: KernelFloat>(
    cx: &Cx,
    (tiles, stride): (&[T], usize),
    (filters, channels): (&[T], usize),
    products: &mut [T],
) -> Result<()> {
    let width = filters.len() / (POINTS_2D * channels).max(1);
    let rows = products.len() / (POINTS_2D * width).max(1);
    for (point, products) in products.chunks_mut((rows * width).max(1)).enumerate() {
        let (tiles, filters) = (&tiles[point * rows * stride..], nth(filters, point, channels * width));
        for first in (0..channels).step_by(SUMMED) {
            let cols = SUMMED.min(channels - first);
            let tiles = Mat { data: &tiles[first..], rows, cols, transposed: false };
            let filters = Mat { data: &filters[first * width..], rows: cols, cols: width, transposed: false };
            let tiles = Strided { mat: tiles, stride };
            cx.product_strided(products, width, first > 0, tiles, filters.into())?;
        }
    }
    Ok(())
}
