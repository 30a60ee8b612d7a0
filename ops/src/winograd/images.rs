//! Images in blocks of channels, at the points and back.
#![allow(clippy::needless_range_loop)] // Indexed loops are vectorised.

use std::{marker::PhantomData, ops::Range};

use autobwd::op::{CHANNEL_BLOCK, LaneOf, SubmatrixMut, VectorLoops};

use super::{
    POINTS, POINTS_2D, TILE, Tiling,
    transforms::{FromPoints, Rows, Transform},
};
use crate::kernel_helpers::KernelFloat;

/// Evaluates squares of `N × N` pixels of an image that begin a tile apart: tiles, or the elements under their windows.
pub(crate) struct Evaluate<'a, 'm, T, R, const N: usize, const NN: usize> {
    pub(crate) transform: PhantomData<R>,
    pub(crate) tiling: Tiling,
    /// Rows of tiles.
    pub(crate) rows: Range<usize>,
    /// A block of channels, from that row of the image on.
    pub(crate) pixels: &'a [T],
    pub(crate) first_row: usize,
    /// `[points * tiles, 16]`, the number of tiles, and the first tile of the rows.
    pub(crate) values: &'a mut SubmatrixMut<'m, T>,
    pub(crate) tiles: usize,
    pub(crate) at: usize,
}
impl<T, R, const N: usize, const NN: usize> VectorLoops<T> for Evaluate<'_, '_, T, R, N, NN>
where
    T: KernelFloat,
    R: Transform<N, POINTS>,
{
    type Output = ();

    #[inline(always)]
    fn run<F: LaneOf<T>>(self) {
        let Evaluate { tiling, rows, pixels, first_row, values, tiles, mut at, .. } = self;
        let ([height, width], [above, left]) = (tiling.x, tiling.before);
        let (zeros, pixels) = ([T::ZERO; CHANNEL_BLOCK], pixels.as_chunks().0);
        let mut squares = Rows::<F, N, POINTS>::new();
        for row in rows {
            for column in 0..tiling.tiles()[1] {
                // Above and to the left of the image, differences wrap around.
                let (top, left) = ((row * TILE).wrapping_sub(above), (column * TILE).wrapping_sub(left));
                let mut from = [&zeros; NN];
                for i in 0..N {
                    let y = top.wrapping_add(i);
                    for j in 0..N {
                        let x = left.wrapping_add(j);
                        if y < height && x < width {
                            from[i * N + j] = &pixels[(y - first_row) * width + x];
                        }
                    }
                }
                squares.set::<T, R, NN>(from);
                for j in 0..POINTS {
                    let column = squares.column::<T, R>(j);
                    for i in 0..POINTS {
                        let values = values.row((i * POINTS + j) * tiles + at);
                        if let Some(to) = values.first_chunk_mut() {
                            *to = column[i];
                        }
                    }
                }
                at += 1;
            }
        }
    }
}

/// The pixels of some rows of tiles: the interpolated products, a bias and bounds.
pub(crate) struct Interpolate<'a, T> {
    pub(crate) tiling: Tiling,
    pub(crate) rows: Range<usize>,
    /// `[points, tiles, filters]`, from the first filter of a block on; the numbers of tiles and filters; and the first tile.
    pub(crate) products: &'a [T],
    pub(crate) size: [usize; 2],
    pub(crate) at: usize,
    pub(crate) bias: &'a [T; CHANNEL_BLOCK],
    /// The least and the largest pixel.
    pub(crate) bounds: [T; 2],
    /// The rows of pixels, with 16 filters side by side.
    pub(crate) pixels: &'a mut [T],
}
impl<T: KernelFloat> VectorLoops<T> for Interpolate<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<F: LaneOf<T>>(self) {
        let Interpolate { tiling, rows, products, size: [tiles, filters], mut at, bias, bounds, pixels } =
            self;
        let (width, pixels) = (tiling.y[1], pixels.as_chunks_mut::<CHANNEL_BLOCK>().0);
        let ([least, most], zeros) = (bounds.map(|bound| F::new(bound)), [T::ZERO; CHANNEL_BLOCK]);
        let mut squares = Rows::<F, POINTS, TILE>::new();
        for row in 0..rows.len() {
            for column in 0..tiling.tiles()[1] {
                let mut from = [&zeros; POINTS_2D];
                for point in 0..POINTS_2D {
                    if let Some(lanes) = products[(point * tiles + at) * filters..].first_chunk() {
                        from[point] = lanes;
                    }
                }
                squares.set::<T, FromPoints, POINTS_2D>(from);
                let left = column * TILE;
                for j in 0..TILE.min(width - left) {
                    let mut column = squares.column::<T, FromPoints>(j);
                    for i in 0..TILE {
                        for l in 0..CHANNEL_BLOCK {
                            let y = F::new(column[i][l]) + F::new(bias[l]);
                            let y = F::select(least.gt(y), least, y);
                            column[i][l] = F::select(y.gt(most), most, y).get();
                        }
                    }
                    for i in 0..TILE {
                        if let Some(pixel) = pixels.get_mut((row * TILE + i) * width + left + j) {
                            *pixel = column[i];
                        }
                    }
                }
                at += 1;
            }
        }
    }
}
