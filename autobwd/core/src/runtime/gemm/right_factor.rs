//! Right factors of products: matrices in memory, or numbers that are computed where they are packed.

use super::{Factor, GemmElement, Matrix, Storage, vector::Vector};

/// The right factor of a product.
///
/// # Safety
/// Of its functions: terms and columns exist, and the machine has the instructions of the vector.
pub(super) unsafe trait RightFactor: Copy {
    /// The type in which products are summed.
    type Sum: GemmElement;
    /// Whether elements can be multiplied where they are.
    const IN_PLACE: bool;

    /// Whether the columns of a term are contiguous.
    fn is_row_major(self) -> bool;
    /// The factor from a term and a column on.
    unsafe fn at(self, term: usize, column: usize) -> Self;
    /// The first element, and the distance of terms, if elements are multiplied where they are.
    fn in_place(self) -> (*const Self::Sum, usize);
    /// Writes some terms of `used` columns, and zeros up to `width` columns, which are whole vectors.
    unsafe fn pack<V: Vector<Element = Self::Sum>>(
        self,
        terms: usize,
        used_of_width: (usize, usize),
        to: *mut Self::Sum,
    );
}

/// The most [`RowMajor::RUNS`].
pub(super) const MOST_RUNS: usize = 4;

/// A right factor whose columns are contiguous.
///
/// # Safety
/// Of its functions: as of [`RightFactor`].
pub(super) unsafe trait RowMajor: RightFactor {
    /// Runs of rows that are read side by side, at most [`MOST_RUNS`].
    const RUNS: usize;

    /// Whether so many terms, from a multiple of their number on, can be read together.
    fn reads_together(self, terms: usize) -> bool;
    /// A vector of columns, from this one on, of a term, one of `N` that are read together.
    unsafe fn row<V: Vector<Element = Self::Sum>, const N: usize>(self, column: usize, term: usize) -> V;
}

// SAFETY: elements lie where the distances say.
unsafe impl<Y: Factor> RightFactor for Matrix<Y> {
    type Sum = Y::Sum;
    const IN_PLACE: bool = matches!(Y::STORAGE, Storage::InPlace);

    #[inline(always)]
    fn is_row_major(self) -> bool {
        self.2 == 1
    }
    #[inline(always)]
    unsafe fn at(self, term: usize, column: usize) -> Self {
        let (start, row_distance, column_distance) = self;
        let offset = term as isize * row_distance + column as isize * column_distance;
        // SAFETY: the caller's promise.
        (unsafe { start.offset(offset) }, row_distance, column_distance)
    }
    #[inline(always)]
    fn in_place(self) -> (*const Y::Sum, usize) {
        (self.0.cast(), self.1 as usize)
    }
    #[inline(always)]
    unsafe fn pack<V: Vector<Element = Y::Sum>>(self, terms: usize, size: (usize, usize), to: *mut Y::Sum) {
        let (from, row, column) = self;
        // SAFETY: the caller's promise.
        unsafe {
            match column {
                1 => pack_rows::<V, Y>((from, row as usize), to, terms, size),
                _ => pack_transposed::<V, Y>((from, column as usize), to, terms, size),
            }
        }
    }
}

// SAFETY: as above.
unsafe impl<Y: Factor> RowMajor for Matrix<Y> {
    const RUNS: usize = 1;

    #[inline(always)]
    fn reads_together(self, _: usize) -> bool {
        true
    }
    #[inline(always)]
    unsafe fn row<V: Vector<Element = Y::Sum>, const N: usize>(self, column: usize, term: usize) -> V {
        let (start, row, _) = self;
        // SAFETY: the caller's promise.
        unsafe { V::widen(start.offset(term as isize * row).add(column)) }
    }
}

/// # Safety
/// There are as many terms of `used` columns each, and memory for `width` columns, which are whole vectors.
#[inline(always)]
unsafe fn pack_rows<V: Vector, Y: Factor<Sum = V::Element>>(
    (from, from_row): (*const Y, usize),
    to: *mut V::Element,
    terms: usize,
    (used, width): (usize, usize),
) {
    let whole = used / V::LANES * V::LANES;
    for term in 0..terms {
        // SAFETY: the caller's promise.
        unsafe {
            let (from, to) = (from.add(term * from_row), to.add(term * width));
            for column in (0..whole).step_by(V::LANES) {
                V::widen(from.add(column)).store(to.add(column));
            }
            if whole < width {
                V::widen_first(from.add(whole), used - whole).store(to.add(whole));
            }
        }
    }
}

/// As [`pack_rows`], for columns whose terms are contiguous.
///
/// # Safety
/// As there; columns are `from_col` elements apart.
#[inline(always)]
unsafe fn pack_transposed<V: Vector, Y: Factor<Sum = V::Element>>(
    (from, from_col): (*const Y, usize),
    to: *mut V::Element,
    terms: usize,
    (used, width): (usize, usize),
) {
    for column in (0..width).step_by(V::LANES) {
        let columns = V::LANES.min(used - column.min(used));
        for term in (0..terms).step_by(V::LANES) {
            let size = (columns, V::LANES.min(terms - term));
            // SAFETY: the caller's promise.
            unsafe {
                V::transpose(
                    (from.add(column * from_col + term), from_col),
                    size,
                    (to.add(term * width + column), width),
                );
            }
        }
    }
}
