//! The innermost loops: a tile of a product in registers.

use std::marker::PhantomData;

use super::{
    GemmElement, Onto,
    vector::{Vector, VectorWork},
};

/// Rows of the largest tile.
pub(super) const ROWS: usize = 6;

/// How tiles multiply: what is in the packed parts of factors, and how it is added to a vector of sums.
///
/// # Safety
/// Of its functions: the machine has the instructions, and pointers lead to a unit, or a vector of units.
pub(super) unsafe trait Multiplier<V: Vector> {
    /// What is multiplied at a time: one or more terms of a row or of a column. It has the size of an element.
    type Unit: Copy;
    /// A vector of units.
    type Units: Copy;

    /// A vector of the unit at `x`.
    unsafe fn splat(x: *const Self::Unit) -> Self::Units;
    /// The units at `y`.
    unsafe fn load(y: *const Self::Unit) -> Self::Units;
    /// `x · y + sum`, term after term, rounded for each term.
    unsafe fn mul_add(x: Self::Units, y: Self::Units, sum: V) -> V;
    /// As [`Vector::with_instructions`], with the instructions of the multiplication.
    unsafe fn with_instructions<W: VectorWork<V>>(work: W);
}

/// Some rows and columns of a product, over the terms of one block.
#[derive(Clone, Copy)]
pub(super) struct Tile<U, T> {
    /// The number of units.
    pub(super) units: usize,
    /// The left factor, with the distances of its rows and units.
    pub(super) x: (*const U, isize, isize),
    /// The right factor, with the distance of its units; columns are contiguous.
    pub(super) y: (*const U, usize),
    /// The result, with the distance of its rows; columns are contiguous.
    pub(super) out: (*mut T, usize),
    /// Columns of the last vector that are written; all if 0.
    pub(super) last: usize,
    pub(super) onto: Onto<T>,
}

impl<U: Copy, T: GemmElement> Tile<U, T> {
    /// Computes `rows` rows and `vectors` vectors of columns: 1, 2 or as many as `V::TILE`.
    ///
    /// # Safety
    /// The machine has the instructions. The pointers lead to as many elements; nothing else uses the elements of `out` meanwhile.
    #[inline(always)]
    pub(super) unsafe fn run<V: Vector<Element = T>, M: Multiplier<V, Unit = U>>(
        self,
        rows: usize,
        vectors: usize,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            match vectors {
                1 => self.run_columns::<V, M, 1>(rows),
                2 => self.run_columns::<V, M, 2>(rows),
                _ => self.run_columns::<V, M, 4>(rows),
            }
        }
    }

    /// # Safety
    /// As [`run`](Tile::run).
    #[inline(always)]
    unsafe fn run_columns<V: Vector<Element = T>, M: Multiplier<V, Unit = U>, const N: usize>(
        self,
        rows: usize,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            match rows {
                1 => M::with_instructions(Sized::<U, T, M, 1, N>(self, PhantomData)),
                2 => M::with_instructions(Sized::<U, T, M, 2, N>(self, PhantomData)),
                3 => M::with_instructions(Sized::<U, T, M, 3, N>(self, PhantomData)),
                4 => M::with_instructions(Sized::<U, T, M, 4, N>(self, PhantomData)),
                5 => M::with_instructions(Sized::<U, T, M, 5, N>(self, PhantomData)),
                _ => M::with_instructions(Sized::<U, T, M, ROWS, N>(self, PhantomData)),
            }
        }
    }
}

/// A tile of `R` rows and `N` vectors of columns.
struct Sized<U, T, M, const R: usize, const N: usize>(Tile<U, T>, PhantomData<M>);

impl<T, V, M, const R: usize, const N: usize> VectorWork<V> for Sized<M::Unit, T, M, R, N>
where
    T: GemmElement,
    V: Vector<Element = T>,
    M: Multiplier<V>,
{
    #[inline(always)]
    unsafe fn run(self) {
        let Tile { units, x: (x, x_row, x_unit), y: (mut y, y_unit), out: (out, out_row), last, onto } =
            self.0;
        // SAFETY: the promises of `Tile::run`.
        unsafe {
            let mut sums = [[V::splat(T::ZERO); N]; R];
            let mut rows: [*const M::Unit; R] =
                std::array::from_fn(|r| x.wrapping_offset(r as isize * x_row));
            for _ in 0..units {
                let columns: [M::Units; N] = std::array::from_fn(|v| M::load(y.add(v * V::LANES)));
                for r in 0..R {
                    let factor = M::splat(rows[r]);
                    for v in 0..N {
                        sums[r][v] = M::mul_add(factor, columns[v], sums[r][v]);
                    }
                    rows[r] = rows[r].wrapping_offset(x_unit);
                }
                y = y.wrapping_add(y_unit);
            }
            for r in 0..R {
                let out = out.add(r * out_row);
                for v in 0..N - 1 {
                    onto.put(sums[r][v], out.add(v * V::LANES));
                }
                let (sum, out) = (sums[r][N - 1], out.add((N - 1) * V::LANES));
                match last {
                    0 => onto.put(sum, out),
                    n => onto.put_first(sum, out, n),
                }
            }
        }
    }
}
