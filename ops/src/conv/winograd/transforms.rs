//! The loops of Winograd's algorithm, compiled for every instruction set: tiles to planes, planes to tiles, and the maps
//! to the points and back.

use std::{
    f64::consts::{FRAC_1_SQRT_2, SQRT_2},
    marker::PhantomData,
};

use autobwd::{
    Float,
    op::{Factor, LaneOf, VectorLoops},
};

use super::{LANES, PIXELS_2D, POINTS, TILE, WINDOW};
use crate::{conv::storage::ConvElement, kernel_helpers::KernelFloat};

/// Divides padded rows into squares of `N × N` elements that begin a tile apart: for each element, those of all squares.
/// Squares are tiles, or the elements under the windows of tiles.
pub(super) struct Deinterleave<'a, T, const N: usize, const NN: usize> {
    pub(super) padded: &'a [T],
    /// Tiles of a row.
    pub(super) across: usize,
    pub(super) elements: [&'a mut [T]; NN],
}
impl<T: KernelFloat, const N: usize, const NN: usize> VectorLoops<T> for Deinterleave<'_, T, N, NN> {
    type Output = ();

    #[inline(always)]
    fn run<F: LaneOf<T>>(mut self) {
        let (across, width) = (self.across, (self.across + 1) * TILE);
        for i in 0..self.elements[0].len() / across {
            for (row, elements) in self.elements.as_chunks_mut::<N>().0.iter_mut().enumerate() {
                let (tiles, _) = self.padded[(i * TILE + row) * width..][..width].as_chunks::<TILE>();
                let (tiles, next) = (&tiles[..across], &tiles[1..][..across]);
                let mut elements = elements.iter_mut().map(|to| &mut to[i * across..][..across]);
                let [a, b, c, d] = [(); TILE].map(|()| elements.next().unwrap_or_default());
                for t in 0..across {
                    [a[t], b[t], c[t], d[t]] = tiles[t];
                }
                if let Some(e) = elements.next()
                    && let Some(f) = elements.next()
                {
                    for t in 0..across {
                        [e[t], f[t], ..] = next[t];
                    }
                }
            }
        }
    }
}

/// Writes the pixels of tiles to rows of `y`.
pub(super) struct Interleave<'a, T: Factor> {
    /// For each pixel of a tile, those of all tiles.
    pub(super) pixels: [&'a [T::Sum]; PIXELS_2D],
    pub(super) across: usize,
    pub(super) y: &'a mut [T],
    pub(super) width: usize,
}
impl<T: ConvElement> VectorLoops<T::Sum> for Interleave<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<F: LaneOf<T::Sum>>(self) {
        let rows = self.pixels[0].len() / self.across * TILE;
        for (row, y) in self.y.chunks_mut(self.width).take(rows).enumerate() {
            let pixels = &self.pixels[row % TILE * TILE..][..TILE];
            let [a, b, c, d] = [0, 1, 2, 3].map(|k| &pixels[k][row / TILE * self.across..][..self.across]);
            let [e, f, g] = [a, b, c];
            let (tiles, rest) = y.as_chunks_mut::<TILE>();
            let whole = tiles.len().min(self.across);
            let (tiles, [a, b, c, d]) = (&mut tiles[..whole], [a, b, c, d].map(|pixels| &pixels[..whole]));
            for t in 0..whole {
                tiles[t] = [a[t], b[t], c[t], d[t]].map(T::rounded);
            }
            rest.iter_mut().zip([e, f, g]).for_each(|(y, pixels)| *y = T::rounded(pixels[whole]));
        }
    }
}

/// A linear map of rows, and then of columns, of a square.
pub(crate) trait Transform<const I: usize, const O: usize> {
    fn of<F: Float>(x: [F; I]) -> [F; O];
}

/// From a filter to its values at the points, times factors that make the interpolation exact.
pub(crate) struct FilterAtPoints;
impl Transform<WINDOW, POINTS> for FilterAtPoints {
    #[inline(always)]
    fn of<F: Float>([a, b, c]: [F; WINDOW]) -> [F; POINTS] {
        let number = |x: f64| F::from(x);
        let (even, odd) = ((a + c * number(0.5)) * number(-2.0 / 3.0), b * number(-SQRT_2 / 3.0));
        let (even2, odd2) = ((a + c * number(2.0)) * number(1.0 / 6.0), b * number(SQRT_2 / 6.0));
        [a, even + odd, even - odd, even2 + odd2, even2 - odd2, c]
    }
}

/// The transpose of interpolation: from the elements under the windows of a tile to values at the points.
pub(crate) struct AtPoints;
impl Transform<POINTS, POINTS> for AtPoints {
    #[inline(always)]
    fn of<F: Float>([a, b, c, d, e, f]: [F; POINTS]) -> [F; POINTS] {
        let number = |x: f64| F::from(x);
        let (even, odd) = (e - c * number(2.0), (d - b * number(2.0)) * number(FRAC_1_SQRT_2));
        let (even2, odd2) = (e - c * number(0.5), (d - b * number(0.5)) * number(SQRT_2));
        let (zero, infinite) = (a + e - c * number(2.5), b + f - d * number(2.5));
        [zero, even + odd, even - odd, even2 + odd2, even2 - odd2, infinite]
    }
}

/// From the products at the points to the pixels of a tile.
pub(crate) struct FromPoints;
impl Transform<POINTS, TILE> for FromPoints {
    #[inline(always)]
    fn of<F: Float>([zero, a, b, c, d, infinite]: [F; POINTS]) -> [F; TILE] {
        let number = |x: f64| F::from(x);
        let (even, odd) = (a + b, (a - b) * number(FRAC_1_SQRT_2));
        let (even2, odd2) = (c + d, (c - d) * number(SQRT_2));
        [
            zero + even + even2,
            odd + odd2,
            even * number(0.5) + even2 * number(2.0),
            odd * number(0.5) + odd2 * number(2.0) + infinite,
        ]
    }
}

/// The transpose of [`FromPoints`]: from the pixels of a tile to values at the points.
pub(crate) struct PixelsAtPoints;
impl Transform<TILE, POINTS> for PixelsAtPoints {
    #[inline(always)]
    fn of<F: Float>([a, b, c, d]: [F; TILE]) -> [F; POINTS] {
        let number = |x: f64| F::from(x);
        let (even, odd) = (a + c * number(0.5), (b + d * number(0.5)) * number(FRAC_1_SQRT_2));
        let (even2, odd2) = (a + c * number(2.0), (b + d * number(2.0)) * number(SQRT_2));
        [a, even + odd, even - odd, even2 + odd2, even2 - odd2, d]
    }
}

/// The transpose of [`FilterAtPoints`]: from sums at the points to a filter.
pub(crate) struct FilterFromPoints;
impl Transform<POINTS, WINDOW> for FilterFromPoints {
    #[inline(always)]
    fn of<F: Float>([zero, a, b, c, d, infinite]: [F; POINTS]) -> [F; WINDOW] {
        let number = |x: f64| F::from(x);
        let (even, odd) = ((a + b) * number(-2.0 / 3.0), (a - b) * number(-SQRT_2 / 3.0));
        let (even2, odd2) = ((c + d) * number(1.0 / 6.0), (c - d) * number(SQRT_2 / 6.0));
        [zero + even + even2, odd + odd2, even * number(0.5) + even2 * number(2.0) + infinite]
    }
}

/// Applies a transform to rows and columns of squares; each slice has one element of every square.
pub(crate) struct Squares<'a, T, R, const I: usize, const O: usize, const II: usize, const OO: usize> {
    pub(crate) transform: PhantomData<R>,
    pub(crate) from: [&'a [T]; II],
    pub(crate) to: [&'a mut [T]; OO],
}
impl<T, R, const I: usize, const O: usize, const II: usize, const OO: usize> VectorLoops<T>
    for Squares<'_, T, R, I, O, II, OO>
where
    T: KernelFloat,
    R: Transform<I, O>,
{
    type Output = ();

    #[inline(always)]
    fn run<F: LaneOf<T>>(mut self) {
        let (n, mut at) = (self.from[0].len(), 0);
        let zero = F::from(0.0);
        while at < n {
            let len = LANES.min(n - at);
            let (mut x, mut y) = ([[T::ZERO; LANES]; II], [[T::ZERO; LANES]; OO]);
            let mut rows = [[[zero; LANES]; O]; I];
            for (x, from) in x.iter_mut().zip(self.from) {
                match from[at..].first_chunk() {
                    Some(from) => *x = *from,
                    None => x[..len].copy_from_slice(&from[at..]),
                }
            }
            for i in 0..I {
                for l in 0..LANES {
                    let mut row = [zero; I];
                    for j in 0..I {
                        row[j] = F::new(x[i * I + j][l]);
                    }
                    let row = R::of(row);
                    for j in 0..O {
                        rows[i][j][l] = row[j];
                    }
                }
            }
            for j in 0..O {
                for l in 0..LANES {
                    let mut column = [zero; I];
                    for i in 0..I {
                        column[i] = rows[i][j][l];
                    }
                    let column = R::of(column);
                    for i in 0..O {
                        y[i * O + j][l] = column[i].get();
                    }
                }
            }
            for (y, to) in y.iter().zip(&mut self.to) {
                match to[at..].first_chunk_mut() {
                    Some(to) => *to = *y,
                    None => to[at..].copy_from_slice(&y[..len]),
                }
            }
            at += LANES;
        }
    }
}
