//! The innermost loops: a tile of a product in registers.

use super::{
    GemmElement, Onto,
    vector::{Vector, VectorWork},
};

/// Rows of the largest tile.
pub(super) const ROWS: usize = 6;

/// Some rows and columns of a product, over the terms of one block.
#[derive(Clone, Copy)]
pub(super) struct Tile<T> {
    pub(super) terms: usize,
    /// The left factor, with the distances of its rows and terms.
    pub(super) x: (*const T, isize, isize),
    /// The right factor, with the distance of its terms; columns are contiguous.
    pub(super) y: (*const T, usize),
    /// The result, with the distance of its rows; columns are contiguous.
    pub(super) out: (*mut T, usize),
    /// Columns of the last vector that are written; all if 0.
    pub(super) last: usize,
    pub(super) onto: Onto<T>,
}

impl<T: GemmElement> Tile<T> {
    /// Computes `rows` rows and `vectors` vectors of columns: 1, 2 or as many as `V::TILE`.
    ///
    /// # Safety
    /// The machine has the instructions of the vector. The pointers lead to as many elements; nothing else uses those of
    /// `out` meanwhile.
    #[inline(always)]
    pub(super) unsafe fn run<V: Vector<Element = T>>(self, rows: usize, vectors: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            match vectors {
                1 => self.run_columns::<V, 1>(rows),
                2 => self.run_columns::<V, 2>(rows),
                _ => self.run_columns::<V, 4>(rows),
            }
        }
    }

    /// # Safety
    /// As [`run`](Tile::run).
    #[inline(always)]
    unsafe fn run_columns<V: Vector<Element = T>, const N: usize>(self, rows: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            match rows {
                1 => V::with_instructions(Sized::<T, 1, N>(self)),
                2 => V::with_instructions(Sized::<T, 2, N>(self)),
                3 => V::with_instructions(Sized::<T, 3, N>(self)),
                4 => V::with_instructions(Sized::<T, 4, N>(self)),
                5 => V::with_instructions(Sized::<T, 5, N>(self)),
                _ => V::with_instructions(Sized::<T, ROWS, N>(self)),
            }
        }
    }
}

/// A tile of `M` rows and `N` vectors of columns.
struct Sized<T, const M: usize, const N: usize>(Tile<T>);

impl<T: GemmElement, V: Vector<Element = T>, const M: usize, const N: usize> VectorWork<V>
    for Sized<T, M, N>
{
    #[inline(always)]
    unsafe fn run(self) {
        let Tile { terms, x: (x, x_row, x_term), y: (mut y, y_term), out: (out, out_row), last, onto } =
            self.0;
        // SAFETY: the promises of `Tile::run`.
        unsafe {
            let mut sums = [[V::splat(T::ZERO); N]; M];
            let mut rows: [*const T; M] = std::array::from_fn(|r| x.wrapping_offset(r as isize * x_row));
            for _ in 0..terms {
                let columns: [V; N] = std::array::from_fn(|v| V::load(y.add(v * V::LANES)));
                for r in 0..M {
                    let factor = V::splat(*rows[r]);
                    for v in 0..N {
                        sums[r][v] = factor.mul_add(columns[v], sums[r][v]);
                    }
                    rows[r] = rows[r].wrapping_offset(x_term);
                }
                y = y.wrapping_add(y_term);
            }
            for r in 0..M {
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
