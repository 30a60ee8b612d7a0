//! Products in blocks: of 512 terms, which the arithmetic fixes, and of rows and columns, which caches suggest.

use super::{
    Factor, GemmElement, Matrix, Onto, Storage,
    right_factor::RightFactor,
    tile::{Multiplier, ROWS, Tile},
    vector::{Vector, VectorWork},
};

/// Terms of a block. Each block is one chain of fused multiply-adds, in the order of its terms, from 0 on; the sums of
/// blocks are scaled, and added one after the other. The bits of every product depend on it.
pub(super) const TERMS: usize = 512;
/// Rows whose copy stays in the cache of a core, next to a panel of columns.
pub(super) const BLOCK_ROWS: usize = 16 * ROWS;
/// Bytes of packed columns.
const COLUMN_BYTES: usize = 2 << 20;
/// Elements between copied rows: not a power of two, since rows would share lines of the cache.
pub(super) const ROW_STRIDE: usize = TERMS + 16;
/// The most columns of a tile.
const TILE_COLUMNS: usize = 64;
/// Elements of the right factor up to which it is read in place.
pub(super) const IN_PLACE: usize = 1 << 14;
/// Terms that are few.
const FEW_TERMS: usize = 32;
/// The same for so many rows, for which a copy would take a large part of the time.
const IN_PLACE_FOR_SOME_ROWS: usize = 1 << 17;
const SOME_ROWS: usize = 48;
/// Columns from which a copy of rows pays, and the distance of rows.
const COPY_COLUMNS: usize = 256;
const COPY_STRIDE: isize = 512;

/// Memory for parts of factors.
#[derive(Debug, Default)]
pub(super) struct Panels<T> {
    pub(super) columns: Vec<T>,
    rows: Vec<T>,
}

impl<T: GemmElement> Panels<T> {
    /// Reserves what the largest product needs.
    pub(super) fn reserve(&mut self) {
        self.columns.reserve(COLUMN_BYTES / size_of::<T>());
        self.rows.reserve(BLOCK_ROWS * ROW_STRIDE);
    }
}

/// The first elements of a buffer, which grows if it must.
pub(super) fn grown<T: GemmElement>(buffer: &mut Vec<T>, len: usize) -> &mut [T] {
    if buffer.len() < len {
        buffer.resize(len, T::ZERO);
    }
    &mut buffer[..len]
}

/// A product of matrices: `out = scale · x · y`, or with `add`, `out += scale · x · y`.
#[derive(Clone, Copy)]
pub(super) struct Product<X: Factor, R> {
    /// Rows, columns and terms.
    pub(super) size: (usize, usize, usize),
    /// The result, with the distances of its rows and columns.
    pub(super) out: (*mut X::Sum, isize, isize),
    pub(super) onto: Onto<X::Sum>,
    pub(super) x: Matrix<X>,
    pub(super) y: R,
}

impl<X: Factor, Y: Factor<Sum = X::Sum>> Product<X, Matrix<Y>> {
    /// The product of the transposes, which is the transpose.
    pub(super) fn transposed(self) -> Product<Y, Matrix<X>> {
        let Product { size: (m, n, k), out: (out, out_row, out_col), onto, x, y } = self;
        let (x, y) = ((y.0, y.2, y.1), (x.0, x.2, x.1));
        Product { size: (n, m, k), out: (out, out_col, out_row), onto, x, y }
    }
}

impl<X: Factor, R: RightFactor<Sum = X::Sum>> Product<X, R> {
    /// # Safety
    /// The machine has the instructions of the vector. The pointers lead to matrices of these sizes with these strides;
    /// one stride of each is 1. Nothing else uses the elements of `out` meanwhile.
    pub(super) unsafe fn run<V: Vector<Element = X::Sum>, P: Packing<V, X, R>>(
        self,
        panels: &mut Panels<X::Sum>,
    ) {
        const { assert!(size_of::<P::Unit>() == size_of::<X::Sum>()) }
        let (m, n, k) = self.size;
        let width = V::TILE * V::LANES;
        // Without other rows that use them, packed columns are used immediately, from the nearest cache.
        let columns = match m <= ROWS {
            true => width,
            false => (COLUMN_BYTES / (TERMS * size_of::<X::Sum>())).next_multiple_of(width),
        };
        // Columns are packed unless the nearest caches hold them all as they are.
        let small = n * k <= if m <= SOME_ROWS { IN_PLACE_FOR_SOME_ROWS } else { IN_PLACE };
        let read_in_place = P::COLUMNS_IN_PLACE && self.y.is_row_major() && small;
        for first_column in (0..n).step_by(columns) {
            let columns = columns.min(n - first_column);
            // One partial tile is faster than two.
            let whole = if columns.is_multiple_of(V::LANES) { columns } else { columns / width * width };
            let in_place = if read_in_place { whole } else { 0 };
            for first_term in (0..k).step_by(TERMS) {
                let terms = TERMS.min(k - first_term);
                let block = Block { first_column, columns, in_place, first_term, terms };
                let units = terms.div_ceil(P::TERMS);
                let packed =
                    grown(&mut panels.columns, units * (columns - in_place).next_multiple_of(V::LANES));
                let packed: *mut P::Unit = packed.as_mut_ptr().cast();
                let mut column = in_place;
                while column < columns {
                    let width = vectors::<V>(columns - column) * V::LANES;
                    let used = width.min(columns - column);
                    // SAFETY: the caller's promise; panels follow each other.
                    unsafe {
                        let y = self.y.at(first_term, first_column + column);
                        P::pack_columns(y, terms, (used, width), packed.add((column - in_place) * units));
                    }
                    column += used;
                }
                // With few terms the time is for the result, which is written row after row.
                let block_rows =
                    if terms <= FEW_TERMS && columns >= COPY_COLUMNS { ROWS } else { BLOCK_ROWS };
                for first_row in (0..m).step_by(block_rows) {
                    let rows = block_rows.min(m - first_row);
                    // SAFETY: the caller's promise; the block lies in the matrices.
                    unsafe { self.rows::<V, P>(block, (first_row, rows), packed, &mut panels.rows) };
                }
            }
        }
    }

    /// Some rows of a block.
    ///
    /// # Safety
    /// As [`run`](Product::run); the block and the rows lie in the matrices. `packed` are the columns that are not read
    /// in place.
    unsafe fn rows<V: Vector<Element = X::Sum>, P: Packing<V, X, R>>(
        &self,
        block: Block,
        (first_row, rows): (usize, usize),
        packed: *const P::Unit,
        copy: &mut Vec<X::Sum>,
    ) {
        let Block { first_column, columns, in_place, first_term, terms } = block;
        // SAFETY: the rows lie in the matrix.
        let x = unsafe { self.x.at(first_row, first_term) };
        let distant = columns >= COPY_COLUMNS && terms > FEW_TERMS && x.1.max(x.2) >= COPY_STRIDE;
        let units = terms.div_ceil(P::TERMS);
        let x = if distant || !P::ROWS_IN_PLACE {
            let (lines, stride) = if x.2 == 1 { (rows, ROW_STRIDE) } else { (units, BLOCK_ROWS) };
            let to: *mut P::Unit = grown(copy, lines * stride).as_mut_ptr().cast();
            // SAFETY: as above; there is memory for as many lines.
            unsafe { P::copy_rows(x, (rows, terms), to) };
            let stride = stride as isize;
            (to.cast_const(), if x.2 == 1 { stride } else { 1 }, if x.2 == 1 { 1 } else { stride })
        } else {
            (x.0.cast(), x.1, x.2)
        };
        let onto = Onto { add: self.onto.add || first_term > 0, ..self.onto };
        let (out, out_row, out_col) = self.out;
        let tile_rows = rows.div_ceil(rows.div_ceil(ROWS));
        let mut column = 0;
        while column < columns {
            let end = if column < in_place { in_place } else { columns };
            let vectors = vectors::<V>(end - column);
            let width = (vectors * V::LANES).min(end - column);
            // SAFETY: the column lies in the block; packed panels lie one after the other.
            let y = unsafe {
                match column < in_place {
                    true => {
                        let (y, y_row) = self.y.at(first_term, first_column + column).in_place();
                        (y.cast(), y_row)
                    }
                    false => (packed.add((column - in_place) * units), vectors * V::LANES),
                }
            };
            for row in (0..rows).step_by(tile_rows) {
                let height = tile_rows.min(rows - row);
                // SAFETY: the row and the column lie in the matrices; the tile has as many rows and columns, or it is
                // computed in memory for the largest one.
                unsafe {
                    let x = (x.0.offset(row as isize * x.1), x.1, x.2);
                    let to = out
                        .offset((first_row + row) as isize * out_row)
                        .offset((first_column + column) as isize * out_col);
                    if out_col == 1 {
                        let last = width % V::LANES;
                        Tile { units, x, y, out: (to, out_row as usize), last, onto }
                            .run::<V, P>(height, vectors);
                        continue;
                    }
                    let mut sums = [X::Sum::ZERO; ROWS * TILE_COLUMNS];
                    let sum = Onto { add: false, scale: X::Sum::ONE };
                    let sums_row = vectors * V::LANES;
                    Tile { units, x, y, out: (sums.as_mut_ptr(), sums_row), last: 0, onto: sum }
                        .run::<V, P>(height, vectors);
                    for row in 0..height {
                        for column in 0..width {
                            let to = to.offset(row as isize * out_row + column as isize * out_col);
                            onto.put_element(sums[row * sums_row + column], to);
                        }
                    }
                }
            }
            column += width;
        }
    }
}

/// Vectors of the next tile, with as many columns left: what [`Tile::run`] takes.
fn vectors<V: Vector>(columns: usize) -> usize {
    match columns.div_ceil(V::LANES) {
        left if left >= V::TILE => V::TILE,
        1 => 1,
        _ => 2,
    }
}

/// Columns and terms of a product.
#[derive(Clone, Copy)]
struct Block {
    first_column: usize,
    columns: usize,
    /// The first of them, in whole vectors, are read in place.
    in_place: usize,
    first_term: usize,
    terms: usize,
}

/// How parts of factors are packed for a [`Multiplier`].
///
/// # Safety
/// Of its functions: the machine has the instructions. There are as many rows, columns and terms, [`BLOCK_ROWS`] and
/// [`TERMS`] at most, and memory for them.
pub(super) unsafe trait Packing<V: Vector, X, R>: Multiplier<V> {
    /// Terms of a unit; the last one may have fewer.
    const TERMS: usize;
    /// Whether rows of the left factor can be multiplied where they are.
    const ROWS_IN_PLACE: bool;
    /// Whether columns of the right factor can be multiplied where they are, if rows are contiguous.
    const COLUMNS_IN_PLACE: bool;

    /// Packs some columns, with zeros up to a number that is whole vectors: the units of all columns, then the next units.
    unsafe fn pack_columns(y: R, terms: usize, used_of_width: (usize, usize), to: *mut Self::Unit);
    /// Copies rows and terms: if terms are contiguous, row after row, [`ROW_STRIDE`] units apart; else unit after unit of
    /// all rows, [`BLOCK_ROWS`] units apart. Distant rows would share lines of the cache.
    unsafe fn copy_rows(x: Matrix<X>, size: (usize, usize), to: *mut Self::Unit);
}

/// Fused multiply-adds of widened elements.
pub(super) struct Widened;

// SAFETY: units are elements.
unsafe impl<V: Vector> Multiplier<V> for Widened {
    type Unit = V::Element;
    type Units = V;

    #[inline(always)]
    unsafe fn splat(x: *const V::Element) -> V {
        // SAFETY: the caller's promise.
        unsafe { V::splat(*x) }
    }
    #[inline(always)]
    unsafe fn load(y: *const V::Element) -> V {
        // SAFETY: the caller's promise.
        unsafe { V::load(y) }
    }
    #[inline(always)]
    unsafe fn mul_add(x: V, y: V, sum: V) -> V {
        // SAFETY: the caller's promise.
        unsafe { x.mul_add(y, sum) }
    }
    #[inline(always)]
    unsafe fn with_instructions<W: VectorWork<V>>(work: W) {
        // SAFETY: the caller's promise.
        unsafe { V::with_instructions(work) }
    }
}

// SAFETY: elements are copied within the sizes.
unsafe impl<V: Vector, X: Factor<Sum = V::Element>, R: RightFactor<Sum = V::Element>> Packing<V, X, R>
    for Widened
{
    const TERMS: usize = 1;
    const ROWS_IN_PLACE: bool = matches!(X::STORAGE, Storage::InPlace);
    const COLUMNS_IN_PLACE: bool = R::IN_PLACE;

    unsafe fn pack_columns(y: R, terms: usize, size: (usize, usize), to: *mut V::Element) {
        // SAFETY: the caller's promise.
        unsafe { V::with_instructions(PackColumns { y, terms, size, to }) }
    }

    unsafe fn copy_rows(x: Matrix<X>, size: (usize, usize), to: *mut V::Element) {
        // SAFETY: the caller's promise.
        unsafe { V::with_instructions(CopyRows { x, size, to }) }
    }
}

/// [`Packing::pack_columns`] of widened elements.
struct PackColumns<R: RightFactor> {
    y: R,
    terms: usize,
    size: (usize, usize),
    to: *mut R::Sum,
}

impl<R: RightFactor, V: Vector<Element = R::Sum>> VectorWork<V> for PackColumns<R> {
    #[inline(always)]
    unsafe fn run(self) {
        // SAFETY: the caller's promise.
        unsafe { self.y.pack::<V>(self.terms, self.size, self.to) }
    }
}

/// [`Packing::copy_rows`] of widened elements.
struct CopyRows<X: Factor> {
    x: Matrix<X>,
    size: (usize, usize),
    to: *mut X::Sum,
}

impl<X: Factor, V: Vector<Element = X::Sum>> VectorWork<V> for CopyRows<X> {
    #[inline(always)]
    unsafe fn run(self) {
        let ((x, x_row, x_term), (rows, terms)) = (self.x, self.size);
        let (lines, len, stride, from_stride) = match x_term {
            1 => (rows, terms, ROW_STRIDE, x_row),
            _ => (terms, rows, BLOCK_ROWS, x_term),
        };
        for line in 0..lines {
            // SAFETY: the caller's promise: elements of a row, or of a term, are contiguous.
            unsafe {
                let (from, to) = (x.offset(line as isize * from_stride), self.to.add(line * stride));
                let whole = len / V::LANES * V::LANES;
                for at in (0..whole).step_by(V::LANES) {
                    V::widen(from.add(at)).store(to.add(at));
                }
                if whole < len {
                    V::widen_first(from.add(whole), len - whole).store_first(to.add(whole), len - whole);
                }
            }
        }
    }
}
