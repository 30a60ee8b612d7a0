//! Products with quantised right factors: numbers are computed from their codes where a product packs or reads them.

use super::{
    AnyVectorWork, Factor, GemmElement, Matrix, Onto, Product,
    blocks::Widened,
    few_rows::{FEW, FewRows, SQUARE},
    right_factor::{RightFactor, RowMajor},
    sealed::GemmKernel,
    vector::{BIAS, Vector},
};

/// What codes stand for before they are scaled.
#[derive(Clone, Copy, Debug)]
pub enum Levels<'a, T> {
    /// Codes of 8 bits: the code minus its zero point, 128 if there are none.
    Bytes,
    /// Codes of 4 bits: the code minus its zero point, 8 if there are none.
    Nibbles,
    /// Codes of 4 bits: the number at this place of a table. There are no zero points.
    Table(&'a [T; 16]),
}

impl<T> Levels<'_, T> {
    /// Rows of a column whose codes share a cell.
    pub fn rows_of_cell(self) -> usize {
        match self {
            Levels::Bytes => 4,
            Levels::Nibbles | Levels::Table(_) => 8,
        }
    }
}

/// A matrix of quantised numbers, possibly read as its transpose. A number is `level · scale`, rounded once; `group` rows
/// of a column have a common scale.
#[derive(Clone, Copy, Debug)]
pub struct QuantizedMat<'a, T> {
    /// Rows as stored.
    pub rows: usize,
    /// Columns as stored.
    pub cols: usize,
    /// The codes, in cells of four bytes in row-major order. A cell has the codes of [`Levels::rows_of_cell`] rows of a
    /// column, the earlier ones in lower bytes and lower bits; the last cells of columns may have more than there are rows.
    pub codes: &'a [u8],
    /// What the codes stand for.
    pub levels: Levels<'a, T>,
    /// Rows with a common scale, at least one; the last ones may be fewer.
    pub group: usize,
    /// The scales of groups, a row of columns each.
    pub scales: &'a [T],
    /// The zero points of groups, a row of columns each.
    pub zero_points: Option<&'a [u8]>,
    /// Whether it is read as its transpose.
    pub transposed: bool,
}

impl<T: GemmElement> QuantizedMat<'_, T> {
    /// Rows and columns as read.
    pub fn shape(&self) -> (usize, usize) {
        if self.transposed { (self.cols, self.rows) } else { (self.rows, self.cols) }
    }

    /// Whether there are as many codes, scales and zero points as the shape and the levels need.
    pub(in super::super) fn is_whole(&self) -> bool {
        let has = |len: usize, rows: usize| rows.checked_mul(self.cols) == Some(len);
        let (cells, rest) = self.codes.as_chunks::<4>();
        self.group > 0
            && rest.is_empty()
            && has(cells.len(), self.rows.div_ceil(self.levels.rows_of_cell()))
            && has(self.scales.len(), self.rows.div_ceil(self.group))
            && match (self.zero_points, self.levels) {
                (None, _) => true,
                (Some(_), Levels::Table(_)) => false,
                (Some(zeros), _) => zeros.len() == self.scales.len(),
            }
    }
}

/// The places of a quantised matrix from a row and a column on.
#[derive(Clone, Copy)]
struct Codes<T, L> {
    levels: L,
    cells: *const u32,
    scales: *const T,
    /// Null if there are none.
    zero_points: *const u8,
    /// The distance of rows.
    stride: usize,
    group: usize,
    row: usize,
}

/// [`Levels`], as a type.
trait LevelsOf<T: GemmElement>: Copy {
    /// Bits of a code.
    const BITS: u32;
    /// Rows of a cell.
    const ROWS: usize = (u32::BITS / Self::BITS) as usize;

    /// A vector of levels, before the shift; their codes begin with this bit of cells.
    ///
    /// # Safety
    /// There are as many cells.
    unsafe fn load<V: Vector<Element = T>>(self, cells: *const u32, bit: u32) -> V;
    /// What is added to levels for these zero points, or for none if the pointer is null; `None` if nothing is.
    ///
    /// # Safety
    /// There are as many zero points.
    unsafe fn shift<V: Vector<Element = T>>(self, zero_points: *const u8) -> Option<V>;
}

/// Codes of some bits, minus zero points.
#[derive(Clone, Copy)]
struct Integers<const BITS: u32>;

impl<T: GemmElement, const BITS: u32> LevelsOf<T> for Integers<BITS> {
    const BITS: u32 = BITS;

    #[inline(always)]
    unsafe fn load<V: Vector<Element = T>>(self, cells: *const u32, bit: u32) -> V {
        // SAFETY: the caller's promise.
        unsafe { V::biased_codes::<BITS>(cells, bit) }
    }
    #[inline(always)]
    unsafe fn shift<V: Vector<Element = T>>(self, zero_points: *const u8) -> Option<V> {
        // SAFETY: the caller's promise.
        unsafe {
            let zero = match zero_points.is_null() {
                true => V::splat(-T::from(1_u8 << (BITS - 1))),
                false => V::from_bytes(zero_points).mul(V::splat(-T::ONE)),
            };
            Some(zero.add(V::splat(-T::from(BIAS))))
        }
    }
}

/// Numbers of a table.
#[derive(Clone, Copy)]
struct Table<'a, T>(&'a [T; 16]);

impl<T: GemmElement> LevelsOf<T> for Table<'_, T> {
    const BITS: u32 = 4;

    #[inline(always)]
    unsafe fn load<V: Vector<Element = T>>(self, cells: *const u32, bit: u32) -> V {
        // SAFETY: the caller's promise.
        unsafe { V::look_up(self.0, cells, bit) }
    }
    #[inline(always)]
    unsafe fn shift<V: Vector<Element = T>>(self, _: *const u8) -> Option<V> {
        None
    }
}

impl<T: GemmElement, L: LevelsOf<T>> Codes<T, L> {
    /// Writes some rows of a number of columns, `stride` elements apart.
    ///
    /// # Safety
    /// They exist, and there is memory for them; the machine has the instructions.
    #[inline(always)]
    unsafe fn write<V: Vector<Element = T>>(
        self,
        rows: usize,
        columns: usize,
        (to, stride): (*mut T, usize),
    ) {
        let together = if self.reads_together(TOGETHER) { rows / TOGETHER * TOGETHER } else { 0 };
        // SAFETY: the caller's promise.
        unsafe {
            for row in (0..together).step_by(TOGETHER) {
                self.at(row, 0).write_rows::<V, TOGETHER>(columns, (to.add(row * stride), stride));
            }
            for row in together..rows {
                self.at(row, 0).write_rows::<V, 1>(columns, (to.add(row * stride), stride));
            }
        }
    }

    /// # Safety
    /// As of [`write`](Codes::write).
    #[inline(always)]
    unsafe fn write_rows<V: Vector<Element = T>, const N: usize>(
        self,
        columns: usize,
        (to, stride): (*mut T, usize),
    ) {
        let whole = columns / V::LANES * V::LANES;
        // SAFETY: the caller's promise.
        unsafe {
            for column in (0..whole).step_by(V::LANES) {
                for l in 0..N {
                    self.row::<V, N>(column, l).store(to.add(l * stride + column));
                }
            }
            for column in whole..columns {
                for l in 0..N {
                    self.row::<V::Array<1>, N>(column, l).store(to.add(l * stride + column));
                }
            }
        }
    }
}

/// Rows that are read together.
const TOGETHER: usize = 8;

// SAFETY: numbers are computed from as many codes.
unsafe impl<T: GemmElement, L: LevelsOf<T>> RightFactor for Codes<T, L> {
    type Sum = T;
    const IN_PLACE: bool = false;

    #[inline(always)]
    fn is_row_major(self) -> bool {
        true
    }
    #[inline(always)]
    unsafe fn at(self, term: usize, column: usize) -> Self {
        let row = self.row + term;
        let cells = row / L::ROWS - self.row / L::ROWS;
        let groups = row / self.group - self.row / self.group;
        // SAFETY: the caller's promise.
        unsafe {
            let cells = self.cells.add(cells * self.stride + column);
            let scales = self.scales.add(groups * self.stride + column);
            let zero_points = match self.zero_points.is_null() {
                true => self.zero_points,
                false => self.zero_points.add(groups * self.stride + column),
            };
            Codes { cells, scales, zero_points, row, ..self }
        }
    }
    #[inline(always)]
    fn in_place(self) -> (*const T, usize) {
        (std::ptr::null(), 0)
    }
    #[inline(always)]
    unsafe fn pack<V: Vector<Element = T>>(self, terms: usize, (used, width): (usize, usize), to: *mut T) {
        // SAFETY: the caller's promise.
        unsafe {
            self.write::<V>(terms, used, (to, width));
            for term in 0..terms {
                for column in used..width {
                    *to.add(term * width + column) = T::ZERO;
                }
            }
        }
    }
}

// SAFETY: as above.
unsafe impl<T: GemmElement, L: LevelsOf<T>> RowMajor for Codes<T, L> {
    const RUNS: usize = L::ROWS / 2;

    #[inline(always)]
    fn reads_together(self, terms: usize) -> bool {
        self.group.is_multiple_of(terms) && self.row.is_multiple_of(terms)
    }
    #[inline(always)]
    unsafe fn row<V: Vector<Element = T>, const N: usize>(self, column: usize, term: usize) -> V {
        // SAFETY: the caller's promise.
        unsafe {
            let first = if N < L::ROWS { self.row % L::ROWS } else { 0 };
            let cells = self.cells.add(term / L::ROWS * self.stride + column);
            let levels: V = self.levels.load::<V>(cells, (first + term % L::ROWS) as u32 * L::BITS);
            let shift = self.levels.shift::<V>(match self.zero_points.is_null() {
                true => self.zero_points,
                false => self.zero_points.add(column),
            });
            let levels = match shift {
                Some(shift) => levels.add(shift),
                None => levels,
            };
            levels.mul(V::load(self.scales.add(column)))
        }
    }
}

/// The transpose of a quantised matrix.
#[derive(Clone, Copy)]
struct Transposed<T, L>(Codes<T, L>);

// SAFETY: as above.
unsafe impl<T: GemmElement, L: LevelsOf<T>> RightFactor for Transposed<T, L> {
    type Sum = T;
    const IN_PLACE: bool = false;

    #[inline(always)]
    fn is_row_major(self) -> bool {
        false
    }
    #[inline(always)]
    unsafe fn at(self, term: usize, column: usize) -> Self {
        // SAFETY: the caller's promise.
        Transposed(unsafe { self.0.at(column, term) })
    }
    #[inline(always)]
    fn in_place(self) -> (*const T, usize) {
        (std::ptr::null(), 0)
    }
    #[inline(always)]
    unsafe fn pack<V: Vector<Element = T>>(self, terms: usize, (used, width): (usize, usize), to: *mut T) {
        let mut square = [T::ZERO; SQUARE];
        for column in (0..width).step_by(V::LANES) {
            let columns = V::LANES.min(used - column.min(used));
            for term in (0..terms).step_by(V::LANES) {
                let terms = V::LANES.min(terms - term);
                // SAFETY: the caller's promise.
                unsafe {
                    let square = square.as_mut_ptr();
                    if columns > 0 {
                        self.0.at(column, term).write::<V>(columns, terms, (square, V::LANES));
                    }
                    let to = to.add(term * width + column);
                    V::transpose((square.cast_const(), V::LANES), (columns, terms), (to, width));
                }
            }
        }
    }
}

/// A product with a quantised right factor.
pub(super) struct QuantizedProduct<'a, X: Factor> {
    pub(super) size: (usize, usize, usize),
    pub(super) out: (*mut X::Sum, isize),
    pub(super) x: Matrix<X>,
    pub(super) y: QuantizedMat<'a, X::Sum>,
    /// The first column of the result.
    pub(super) first_column: usize,
}

impl<X: Factor> QuantizedProduct<'_, X> {
    /// # Safety
    /// As of [`AnyVectorWork::run`].
    unsafe fn run_with<V: Vector<Element = X::Sum>, L: LevelsOf<X::Sum>>(self, levels: L) {
        let QuantizedMat { codes, scales, zero_points, cols: stride, group, transposed, .. } = self.y;
        let zero_points = zero_points.map_or(std::ptr::null(), <[u8]>::as_ptr);
        let (cells, scales) = (codes.as_ptr().cast(), scales.as_ptr());
        let y = Codes { levels, cells, scales, zero_points, stride, group, row: 0 };
        let onto = Onto { add: false, scale: X::Sum::ONE };
        let (size, out, x) = (self.size, (self.out.0, self.out.1, 1), self.x);
        <X::Sum as GemmKernel>::panels().with_borrow_mut(|panels| {
            // SAFETY: the caller's promise.
            unsafe {
                if transposed {
                    let y = Transposed(y.at(self.first_column, 0));
                    Product { size, out, onto, x, y }.run::<V, Widened>(panels);
                } else {
                    let product = Product { size, out, onto, x, y: y.at(0, self.first_column) };
                    match size.0 <= FEW {
                        true => V::with_instructions(FewRows { product, panels }),
                        false => product.run::<V, Widened>(panels),
                    }
                }
            }
        });
    }
}

impl<X: Factor> AnyVectorWork<X::Sum> for QuantizedProduct<'_, X> {
    unsafe fn run<V: Vector<Element = X::Sum>>(self) {
        // SAFETY: the caller's promise.
        unsafe {
            match self.y.levels {
                Levels::Bytes => self.run_with::<V, _>(Integers::<8>),
                Levels::Nibbles => self.run_with::<V, _>(Integers::<4>),
                Levels::Table(table) => self.run_with::<V, _>(Table(table)),
            }
        }
    }
}

/// # Safety
/// The matrices have these sizes, and the first column exists. Nothing else uses the rectangle of `out` meanwhile.
pub(in super::super) unsafe fn gemm_quantized_into<X: Factor>(
    size: (usize, usize, usize),
    out: (*mut X::Sum, isize),
    x: Matrix<X>,
    y: QuantizedMat<'_, X::Sum>,
    first_column: usize,
) {
    // SAFETY: the caller's promise.
    unsafe { X::Sum::in_vectors(QuantizedProduct { size, out, x, y, first_column }) }
}
