//! The maps of Winograd's algorithm to the points and back.
#![allow(clippy::needless_range_loop)] // Indexed loops are vectorised.

use std::{
    f64::consts::{FRAC_1_SQRT_2, SQRT_2},
    marker::PhantomData,
};

use autobwd::{
    Float,
    op::{CHANNEL_BLOCK, LaneOf, VectorLoops, Vectorised},
};

use super::{POINTS, TILE, WINDOW};
use crate::kernel_helpers::KernelFloat;

/// A linear map of rows, and then of columns, of a square.
pub(crate) trait Transform<const I: usize, const O: usize> {
    fn of<F: Float>(x: [F; I]) -> [F; O];
}

/// From a filter to its values at the points, times factors that make the interpolation exact.
pub(super) struct FilterAtPoints;
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

/// Transformed rows of squares. Their lines are lines of the cache, so that vectors do not cross them.
#[repr(align(64))]
pub(super) struct Rows<F, const I: usize, const O: usize>([[[F; CHANNEL_BLOCK]; O]; I]);

impl<F: Float, const I: usize, const O: usize> Rows<F, I, O> {
    #[inline(always)]
    pub(super) fn new() -> Rows<F, I, O> {
        Rows([[[F::from(0.0); CHANNEL_BLOCK]; O]; I])
    }

    /// Transforms the rows of squares, which have a lane each.
    #[inline(always)]
    pub(super) fn set<T: KernelFloat, R: Transform<I, O>, const II: usize>(
        &mut self,
        from: [&[T; CHANNEL_BLOCK]; II],
    ) where
        F: LaneOf<T>,
    {
        for i in 0..I {
            for l in 0..CHANNEL_BLOCK {
                let mut row = [F::from(0.0); I];
                for j in 0..I {
                    row[j] = F::new(from[i * I + j][l]);
                }
                let row = R::of(row);
                for j in 0..O {
                    self.0[i][j][l] = row[j];
                }
            }
        }
    }

    /// A transformed column of the squares.
    #[inline(always)]
    pub(super) fn column<T: KernelFloat, R: Transform<I, O>>(&self, j: usize) -> [[T; CHANNEL_BLOCK]; O]
    where
        F: LaneOf<T>,
    {
        let mut to = [[T::ZERO; CHANNEL_BLOCK]; O];
        for l in 0..CHANNEL_BLOCK {
            let mut column = [F::from(0.0); I];
            for i in 0..I {
                column[i] = self.0[i][j][l];
            }
            let column = R::of(column);
            for i in 0..O {
                to[i][l] = column[i].get();
            }
        }
        to
    }
}

/// The factors of a transform of squares, `[elements of the result, elements]`.
pub(crate) fn factors<R: Transform<I, O>, const I: usize, const O: usize, const II: usize>() -> Vec<[f64; II]>
{
    let mut factors = vec![[0.0; II]; O * O];
    for first in (0..II).step_by(CHANNEL_BLOCK) {
        f64::vectorised(UnitSquares { transform: PhantomData::<R>, first, factors: &mut factors });
    }
    factors
}

/// Transforms squares with a one each, from that element on.
struct UnitSquares<'a, R, const I: usize, const O: usize, const II: usize> {
    transform: PhantomData<R>,
    first: usize,
    factors: &'a mut [[f64; II]],
}
impl<R: Transform<I, O>, const I: usize, const O: usize, const II: usize> VectorLoops<f64>
    for UnitSquares<'_, R, I, O, II>
{
    type Output = ();

    #[inline(always)]
    fn run<F: LaneOf<f64>>(self) {
        let UnitSquares { first, factors, .. } = self;
        let mut units = [[0.0; CHANNEL_BLOCK]; II];
        for (lane, unit) in units[first..].iter_mut().take(CHANNEL_BLOCK).enumerate() {
            unit[lane] = 1.0;
        }
        let mut rows = Rows::<F, I, O>::new();
        rows.set::<f64, R, II>(units.each_ref());
        for j in 0..O {
            for (i, lanes) in rows.column::<f64, R>(j).iter().enumerate() {
                let factors = factors[i * O + j][first..].iter_mut();
                factors.zip(lanes).for_each(|(factor, lane)| *factor = *lane);
            }
        }
    }
}
