//! Products of so few multiplications that the preparation of others would take longer.

use super::{
    Factor, GemmElement, Matrix,
    blocks::Product,
    vector::{Vector, VectorWork},
};

/// The most multiplications.
const TINY: usize = 512;

/// A product of at most [`TINY`] multiplications, whose columns are contiguous.
pub(super) struct Tiny<X: Factor, Y>(pub(super) Product<X, Matrix<Y>>);

/// Whether a product is tiny.
pub(super) fn pays<X: Factor, Y>(product: &Product<X, Matrix<Y>>) -> bool {
    let (m, n, k) = product.size;
    product.y.2 == 1 && product.out.2 == 1 && m.saturating_mul(n).saturating_mul(k) <= TINY
}

impl<X: Factor, Y: Factor<Sum = X::Sum>, V: Vector<Element = X::Sum>> VectorWork<V> for Tiny<X, Y> {
    #[inline(always)]
    unsafe fn run(self) {
        let (m, n, _) = self.0.size;
        let mut row = 0;
        while row < m {
            let rows = if m - row < 4 { 1 } else { 4 };
            let mut column = 0;
            while column < n {
                // SAFETY: the caller's promise; these rows and columns exist.
                column += unsafe {
                    match (rows, n - column) {
                        (1, 8..) => self.strip::<V::Array<8>, 1>(row, column),
                        (1, 4..8) => self.strip::<V::Array<4>, 1>(row, column),
                        (1, _) => self.strip::<V::Array<1>, 1>(row, column),
                        (_, 8..) => self.strip::<V::Array<8>, 4>(row, column),
                        (_, 4..8) => self.strip::<V::Array<4>, 4>(row, column),
                        (..) => self.strip::<V::Array<1>, 4>(row, column),
                    }
                };
            }
            row += rows;
        }
    }
}

impl<X: Factor, Y: Factor<Sum = X::Sum>> Tiny<X, Y> {
    /// Computes `M` rows and a vector of columns; returns the number of columns.
    ///
    /// # Safety
    /// As [`Product::run`]; the rows and columns exist.
    #[inline(always)]
    unsafe fn strip<V: Vector<Element = X::Sum>, const M: usize>(&self, row: usize, column: usize) -> usize {
        let Product { size: (.., k), out: (out, out_row, _), onto, x: (x, x_row, x_term), y: (y, y_row, _) } =
            self.0;
        // SAFETY: the caller's promise.
        unsafe {
            let (x, y) = (x.offset(row as isize * x_row), y.add(column));
            let mut sums = [V::splat(X::Sum::ZERO); M];
            for term in 0..k as isize {
                let y = V::widen(y.offset(term * y_row));
                let x = x.offset(term * x_term);
                for r in 0..M {
                    sums[r] = V::splat((*x.offset(r as isize * x_row)).widened()).mul_add(y, sums[r]);
                }
            }
            for r in 0..M {
                onto.put(sums[r], out.offset((row + r) as isize * out_row).add(column));
            }
        }
        V::LANES
    }
}
