//! Products in which one factor has few rows: the other factor is read once, in the order of its memory, whose bandwidth
//! bounds the time. The blocks of a general product would read it in strips, line by line from distant pages.
// Indexed loops are unrolled and vectorised.
#![allow(clippy::needless_range_loop)]

use std::hint::black_box;

use super::{GemmElement, Matrix};
use crate::runtime::{Isa, isa};

/// The number of rows up to which these loops are faster: for rows of the other factor that are reduced, and for those
/// that are added up.
const DOT_ROWS: usize = 4;
const SUM_ROWS: usize = 2;
/// Terms of a sum from which the loops pay.
const TERMS: usize = 64;
/// Terms of the few rows that are copied at a time.
const PIECE: usize = 256;
/// Columns that are read together.
const COLUMNS: usize = 4;
/// Accumulators of a sum.
const LANES: usize = 8;

/// A product with few rows, `out = scale · few · many`, or with `add`, `out += scale · few · many`.
pub(super) struct FewRows<T> {
    /// Rows of `few`, columns of `many`, and terms of each sum.
    size: (usize, usize, usize),
    /// The result, and its strides.
    out: (*mut T, isize, isize),
    onto: (bool, T),
    few: Matrix<T>,
    many: Matrix<T>,
}

impl<T: GemmElement> FewRows<T> {
    /// The product of `x` and `y`, or its transpose, if the loops pay.
    pub(super) fn new(
        (m, n, k): (usize, usize, usize),
        (out, out_row): (*mut T, isize),
        onto: (bool, T),
        x: Matrix<T>,
        y: Matrix<T>,
    ) -> Option<FewRows<T>> {
        if isa() == Isa::Baseline || k < TERMS {
            return None;
        }
        let transposed = |(start, row, col): Matrix<T>| (start, col, row);
        let (rows, columns) = (
            FewRows { size: (m, n, k), out: (out, out_row, 1), onto, few: x, many: y },
            FewRows {
                size: (n, m, k),
                out: (out, 1, out_row),
                onto,
                few: transposed(y),
                many: transposed(x),
            },
        );
        [rows, columns].into_iter().find(FewRows::pays)
    }

    fn pays(&self) -> bool {
        let (rows, columns, _) = self.size;
        // With as few columns, either factor is small.
        columns > 2 * rows
            && match self.many {
                (_, 1, _) => rows <= DOT_ROWS,
                (_, _, 1) => rows <= SUM_ROWS && self.out.2 == 1,
                _ => false,
            }
    }

    /// # Safety
    /// The pointers lead to matrices of these sizes with these strides; nothing else uses that rectangle of `out`
    /// meanwhile.
    pub(super) unsafe fn run(&self) {
        // SAFETY: the machine has these instructions, and the caller's promise.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            match isa() {
                Isa::Baseline => self.all_rows(),
                Isa::Avx2 => self.run_avx2(),
                Isa::Avx512 => self.run_avx512(),
            }
        }
        // SAFETY: the caller's promise.
        #[cfg(not(target_arch = "x86_64"))]
        unsafe {
            self.all_rows()
        }
    }

    /// # Safety
    /// As [`run`](FewRows::run).
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma")]
    unsafe fn run_avx2(&self) {
        // SAFETY: the caller's promise.
        unsafe { self.all_rows() }
    }

    /// # Safety
    /// As [`run`](FewRows::run).
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,fma")]
    unsafe fn run_avx512(&self) {
        // SAFETY: the caller's promise.
        unsafe { self.all_rows() }
    }

    /// # Safety
    /// As [`run`](FewRows::run).
    #[inline(always)]
    unsafe fn all_rows(&self) {
        // SAFETY: the caller's promise; `pays` has accepted the size and the strides.
        unsafe {
            match (self.size.0, self.many.1) {
                (1, 1) => self.dots::<1>(),
                (2, 1) => self.dots::<2>(),
                (3, 1) => self.dots::<3>(),
                (_, 1) => self.dots::<4>(),
                (1, _) => self.sums::<1, 8>(),
                _ => self.sums::<2, 4>(),
            }
        }
    }

    /// Copies the terms of a row of `few` from `at` on, as many as there are; the rest is 0.
    ///
    /// # Safety
    /// As [`run`](FewRows::run), for a row of the matrix.
    #[inline(always)]
    unsafe fn copy<const N: usize>(&self, row: usize, at: usize, to: &mut [T; N]) {
        let (start, row_step, step) = self.few;
        let left = self.size.2 - at;
        for (l, to) in to.iter_mut().enumerate() {
            let offset = row as isize * row_step + (at + l) as isize * step;
            // SAFETY: the caller's promise: this term exists.
            *to = if l < left { unsafe { *start.offset(offset) } } else { T::ZERO };
        }
    }

    /// Sets or adds to an element of `out`.
    ///
    /// # Safety
    /// As [`run`](FewRows::run), for an element of the matrix.
    #[inline(always)]
    unsafe fn put(&self, row: usize, column: usize, first: bool, sum: T) {
        let (out, row_step, column_step) = self.out;
        let (add, scale) = self.onto;
        // SAFETY: the caller's promise.
        unsafe {
            let out = out.offset(row as isize * row_step + column as isize * column_step);
            *out = if first && !add { scale * sum } else { *out + scale * sum };
        }
    }

    /// The terms of a column of `many` are contiguous: dot products with four columns at a time, from the
    /// cache but for the first row.
    ///
    /// # Safety
    /// As [`run`](FewRows::run), with `R` rows.
    #[inline(always)]
    unsafe fn dots<const R: usize>(&self) {
        let (_, columns, terms) = self.size;
        for at in (0..terms).step_by(PIECE) {
            let n = PIECE.min(terms - at);
            let mut few = [[T::ZERO; PIECE]; R];
            for (row, few) in few.iter_mut().enumerate() {
                // SAFETY: there are `R` rows, and terms from `at` on.
                unsafe { self.copy(row, at, few) };
            }
            let column = |column: usize| {
                // SAFETY: the column exists, and has `n` terms from `at` on, one after the other.
                unsafe {
                    let start = self.many.0.offset(column as isize * self.many.2).add(at);
                    std::slice::from_raw_parts(start, n)
                }
            };
            let whole = columns / COLUMNS * COLUMNS;
            for first in (0..whole).step_by(COLUMNS) {
                let many = [0, 1, 2, 3].map(|i| column(first + i));
                for (row, few) in few.iter().enumerate() {
                    for (i, sum) in dots::<T, COLUMNS>(few, many).into_iter().enumerate() {
                        // SAFETY: there are `R` rows and, below `whole`, `COLUMNS` columns from `first` on.
                        unsafe { self.put(row, first + i, at == 0, sum) };
                    }
                }
            }
            for last in whole..columns {
                for (row, few) in few.iter().enumerate() {
                    let [sum] = dots(few, [column(last)]);
                    // SAFETY: there are `R` rows, and `last` is a column.
                    unsafe { self.put(row, last, at == 0, sum) };
                }
            }
        }
    }

    /// The elements of a row of `many` and of `out` are contiguous: adds `L` rows of `many` at a time, scaled, to the `R`
    /// rows of `out`.
    ///
    /// # Safety
    /// As [`run`](FewRows::run), with `R` rows.
    #[inline(always)]
    unsafe fn sums<const R: usize, const L: usize>(&self) {
        let terms = self.size.2;
        if !self.onto.0 {
            // SAFETY: there are `R` rows.
            (0..R).for_each(|row| unsafe { self.out_row(row) }.fill(T::ZERO));
        }
        let whole = terms / L * L;
        // Loops, not closures: only what is inlined has the instructions of the caller.
        for at in (0..whole).step_by(L) {
            // SAFETY: the caller's promise; there are `L` terms from `at` on.
            unsafe { self.add_terms::<R, L>(at) };
        }
        for at in whole..terms {
            // SAFETY: the caller's promise; there is a term at `at`.
            unsafe { self.add_terms::<R, 1>(at) };
        }
    }

    /// Adds `L` rows of `many`, from `at` on.
    ///
    /// # Safety
    /// As [`sums`](FewRows::sums), and there are as many terms.
    #[inline(always)]
    unsafe fn add_terms<const R: usize, const L: usize>(&self, at: usize) {
        let (columns, (_, scale)) = (self.size.1, self.onto);
        // SAFETY: each term has a row of contiguous elements.
        let many = |l: usize| unsafe {
            std::slice::from_raw_parts(self.many.0.offset((at + l) as isize * self.many.1), columns)
        };
        let mut rows = [many(0); L];
        for (l, row) in rows.iter_mut().enumerate() {
            *row = many(l);
        }
        for row in 0..R {
            let mut factors = [T::ZERO; L];
            // SAFETY: there are `R` rows, and terms from `at` on.
            unsafe { self.copy(row, at, &mut factors) };
            factors.iter_mut().for_each(|factor| *factor = scale * *factor);
            // SAFETY: there are `R` rows of contiguous elements; one slice at a time is in use.
            let out = unsafe { self.out_row(row) };
            add_rows(out, &factors, &rows);
        }
    }

    /// A row of `out`.
    ///
    /// # Safety
    /// As [`sums`](FewRows::sums), for a row of the matrix; no other slice of it is in use.
    #[inline(always)]
    #[allow(clippy::mut_from_ref)] // It borrows the caller's matrix, not `self`.
    unsafe fn out_row(&self, row: usize) -> &mut [T] {
        // SAFETY: the caller's promise: elements of a row are contiguous.
        unsafe { std::slice::from_raw_parts_mut(self.out.0.offset(row as isize * self.out.1), self.size.1) }
    }
}

/// Dot products of `few` with each of `many`, up to the length of these.
#[inline(always)]
fn dots<T: GemmElement, const C: usize>(few: &[T; PIECE], many: [&[T]; C]) -> [T; C] {
    let n = many[0].len();
    let mut lanes = [[T::ZERO; LANES]; C];
    let (few_chunks, chunks) = (few.as_chunks::<LANES>().0, many.map(|many| many.as_chunks::<LANES>().0));
    for (i, few) in few_chunks[..n / LANES].iter().enumerate() {
        for c in 0..C {
            let many = &chunks[c][i];
            for l in 0..LANES {
                lanes[c][l] = few[l].mul_add(many[l], lanes[c][l]);
            }
        }
    }
    // Without this, the compiler keeps a column in each lane, and shuffles all elements.
    let lanes = black_box(lanes);
    let mut sums = [T::ZERO; C];
    for c in 0..C {
        let [x0, x1, x2, x3, x4, x5, x6, x7] = lanes[c];
        sums[c] = ((x0 + x4) + (x2 + x6)) + ((x1 + x5) + (x3 + x7));
        for l in n / LANES * LANES..n {
            sums[c] = few[l].mul_add(many[c][l], sums[c]);
        }
    }
    sums
}

/// `out += Σ factor * row`
#[inline(always)]
fn add_rows<T: GemmElement, const L: usize>(out: &mut [T], factors: &[T; L], rows: &[&[T]; L]) {
    let rows = rows.map(|row| &row[..out.len()]);
    for i in 0..out.len() {
        let mut sum = out[i];
        for l in 0..L {
            sum = factors[l].mul_add(rows[l][i], sum);
        }
        out[i] = sum;
    }
}

#[cfg(test)]
mod tests {
    use crate::{
        Cx, Result,
        runtime::{Mat, Strided},
    };

    fn numbers(n: usize, seed: usize) -> Vec<f64> {
        (0..n).map(|i| ((i * 37 + seed) % 101) as f64 / 50.0 - 1.0).collect()
    }

    /// Compares a product with sums of products, within a larger `out`.
    fn check(
        threads: usize,
        (m, n, k): (usize, usize, usize),
        transposed: [bool; 2],
        scale: f64,
    ) -> Result<()> {
        let mat = |data, rows, cols, transposed| match transposed {
            true => Mat { data, rows: cols, cols: rows, transposed },
            false => Mat { data, rows, cols, transposed },
        };
        let (x, y) = (numbers(m * k, 3), numbers(k * n, 7));
        let (x, y) = (mat(&x[..], m, k, transposed[0]), mat(&y[..], k, n, transposed[1]));
        let (stride, before) = (n + 3, numbers(m * (n + 3), 11));
        for add in [false, true] {
            let mut out = before.clone();
            Cx::new(threads).product_scaled(&mut out, stride, (add, scale), x.into(), y.into())?;
            let at = |x: Mat<'_, f64>, i: usize, j: usize| {
                x.data[if x.transposed { j * x.cols + i } else { i * x.cols + j }]
            };
            for (i, (out, before)) in out.iter().zip(&before).enumerate() {
                let (row, column) = (i / stride, i % stride);
                let sum = || (0..k).map(|l| at(x, row, l) * at(y, l, column)).sum::<f64>();
                let wanted = match (column < n, add) {
                    (false, _) => *before,
                    (true, true) => before + scale * sum(),
                    (true, false) => scale * sum(),
                };
                assert!((out - wanted).abs() < 1e-12, "{m} × {k} × {n}: {out} is not {wanted}");
            }
        }
        Ok(())
    }

    #[test]
    fn few_rows_and_columns_are_sums_of_products() -> Result<()> {
        for few in [1, 2, 3, 4, 5] {
            for many in [11, 70] {
                for k in [64, 71, 300] {
                    for transposed in [[false, false], [false, true], [true, false], [true, true]] {
                        check(1, (few, many, k), transposed, 1.0)?;
                        check(2, (many, few, k), transposed, 0.5)?;
                    }
                }
            }
        }
        Ok(())
    }

    #[test]
    fn infinities_remain_infinite() -> Result<()> {
        let (x, y) = (vec![1.0; 2 * 65], vec![f64::INFINITY; 65 * 20]);
        for few in [1, 2] {
            for transposed in [false, true] {
                let mut out = vec![0.0; few * 20];
                let x = Mat { data: &x[..few * 65], rows: few, cols: 65, transposed: false };
                let (rows, cols) = if transposed { (20, 65) } else { (65, 20) };
                Cx::new(1).product(&mut out, false, x, Mat { data: &y, rows, cols, transposed })?;
                assert!(out.iter().all(|out| *out == f64::INFINITY), "{out:?}");
            }
        }
        Ok(())
    }

    #[test]
    fn bits_do_not_depend_on_threads() -> Result<()> {
        let (x, y) = (numbers(2 * 3000, 1), numbers(3000 * 1000, 2));
        let product = |threads: usize, few: usize| -> Result<Vec<f64>> {
            let mut out = vec![0.0; few * 1000];
            let x = Mat { data: &x[..few * 3000], rows: few, cols: 3000, transposed: false };
            let y = Mat { data: &y[..], rows: 3000, cols: 1000, transposed: false };
            Cx::new(threads).product_strided(&mut out, 1000, false, Strided::from(x), y.into())?;
            Ok(out)
        };
        for few in [1, 2] {
            assert_eq!(product(1, few)?, product(2, few)?);
        }
        Ok(())
    }
}
