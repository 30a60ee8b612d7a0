//! Products with few rows: the right factor is read once, in the order of its memory, whose bandwidth bounds the time.

use super::{
    Factor, GemmElement, Matrix, Onto,
    blocks::{Panels, Product, TERMS, grown},
    right_factor::{MOST_RUNS, RowMajor},
    vector::{MOST_LANES, Vector, VectorWork},
};

/// The most rows for which the loops are faster than blocks.
pub(super) const FEW: usize = 8;
/// Rows whose sums are added to at a time.
const ROWS: usize = 4;
/// The most elements of a square of vectors.
pub(super) const SQUARE: usize = MOST_LANES * MOST_LANES;
/// Bytes of a line of the caches.
const LINE: usize = 64;
/// Sums that stay in the nearest cache.
const SUMS: usize = ROWS * (1024 + 16);

/// Elements between rows of sums, which do not share lines of the cache.
const fn distance(rows: usize) -> usize {
    ROWS / rows * 1024 + 16
}

/// A product of [`FEW`] rows at most, whose right factor has contiguous rows.
pub(super) struct FewRows<'a, X: Factor, R> {
    pub(super) product: Product<X, R>,
    pub(super) panels: &'a mut Panels<X::Sum>,
}

impl<X: Factor, R: RowMajor<Sum = X::Sum>, V: Vector<Element = X::Sum>> VectorWork<V> for FewRows<'_, X, R> {
    #[inline(always)]
    unsafe fn run(self) {
        let (m, n, k) = self.product.size;
        let rows = m.div_ceil(m.div_ceil(ROWS));
        let sums = grown(&mut self.panels.columns, SUMS);
        for first_column in (0..n).step_by(distance(rows)) {
            let columns = (first_column, distance(rows).min(n - first_column));
            for first_term in (0..k).step_by(TERMS) {
                let terms = (first_term, TERMS.min(k - first_term));
                for first_row in (0..m).step_by(rows) {
                    let block = RowBlock { product: &self.product, first_row, columns, terms };
                    // SAFETY: the caller's promise; rows, terms and columns exist.
                    unsafe {
                        match rows.min(m - first_row) {
                            1 => block.add::<V, 1, 8, 2>(sums),
                            2 => block.add::<V, 2, 8, 2>(sums),
                            3 => block.add::<V, 3, 4, 1>(sums),
                            _ => block.add::<V, ROWS, 4, 1>(sums),
                        }
                    }
                }
            }
        }
    }
}

/// Some rows, over a block of terms, for columns whose sums stay in the nearest cache.
struct RowBlock<'a, X: Factor, R> {
    product: &'a Product<X, R>,
    first_row: usize,
    /// The first column, and the number of columns.
    columns: (usize, usize),
    /// The first term, and the number of terms.
    terms: (usize, usize),
}

impl<X: Factor, R: RowMajor<Sum = X::Sum>> RowBlock<'_, X, R> {
    /// Computes `M` rows, with `N` rows of the right factor and `W` vectors of its columns at a time: enough sums that none
    /// waits for itself.
    ///
    /// # Safety
    /// As [`Product::run`], with a right factor of contiguous rows; rows, columns and terms exist.
    #[inline(always)]
    unsafe fn add<V: Vector<Element = X::Sum>, const M: usize, const N: usize, const W: usize>(
        &self,
        sums: &mut [X::Sum],
    ) {
        let ((first_column, columns), (first_term, terms)) = (self.columns, self.terms);
        for row in 0..M {
            sums[row * distance(M)..][..columns].fill(X::Sum::ZERO);
        }
        let (out, out_row, out_col) = self.product.out;
        let onto = Onto { add: self.product.onto.add || first_term > 0, ..self.product.onto };
        // SAFETY: the caller's promise.
        unsafe {
            let mut term = 0;
            if self.product.y.reads_together(N) {
                while term + N <= terms {
                    let runs = R::RUNS.min((terms - term) / N);
                    self.add_terms::<V, M, N, W>(sums.as_mut_ptr(), first_term + term, runs);
                    term += runs * N;
                }
            }
            for term in term..terms {
                self.add_terms::<V, M, 1, W>(sums.as_mut_ptr(), first_term + term, 1);
            }
            for row in 0..M {
                let to = out.offset((self.first_row + row) as isize * out_row);
                for column in 0..columns {
                    let to = to.offset((first_column + column) as isize * out_col);
                    onto.put_element(sums[row * distance(M) + column], to);
                }
            }
        }
    }

    /// Adds the products of some runs of `N` terms.
    ///
    /// # Safety
    /// As [`add`](RowBlock::add).
    #[inline(always)]
    unsafe fn add_terms<V: Vector<Element = X::Sum>, const M: usize, const N: usize, const W: usize>(
        &self,
        sums: *mut X::Sum,
        term: usize,
        runs: usize,
    ) {
        let (x, x_row, x_term) = self.product.x;
        let (first_column, columns) = self.columns;
        // SAFETY: the caller's promise.
        unsafe {
            let mut factors = [[[X::Sum::ZERO; N]; M]; MOST_RUNS];
            let mut y = [self.product.y; MOST_RUNS];
            for run in 0..runs {
                let term = term + run * N;
                y[run] = self.product.y.at(term, first_column);
                for row in 0..M {
                    let x = x.offset((self.first_row + row) as isize * x_row);
                    for l in 0..N {
                        factors[run][row][l] = (*x.offset((term + l) as isize * x_term)).widened();
                    }
                }
            }
            let (factors, y) = (&factors[..runs], &y[..runs]);
            let mut column = 0;
            while column + W * V::LANES <= columns {
                add_vectors::<V, R, M, N, W>(factors, y, column, sums);
                column += W * V::LANES;
            }
            while column + V::LANES <= columns {
                add_vectors::<V, R, M, N, 1>(factors, y, column, sums);
                column += V::LANES;
            }
            for column in column..columns {
                add_vectors::<V::Array<1>, R, M, N, 1>(factors, y, column, sums);
            }
        }
    }
}

/// # Safety
/// As [`RowBlock::add_terms`], for `W` vectors of columns.
#[inline(always)]
unsafe fn add_vectors<
    V: Vector,
    R: RowMajor<Sum = V::Element>,
    const M: usize,
    const N: usize,
    const W: usize,
>(
    factors: &[[[V::Element; N]; M]],
    y: &[R],
    column: usize,
    sums: *mut V::Element,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let sums = sums.add(column);
        let mut sum = [[V::splat(V::Element::ZERO); W]; M];
        for row in 0..M {
            for w in 0..W {
                sum[row][w] = V::load(sums.add(row * distance(M) + w * V::LANES));
            }
        }
        for run in 0..y.len() {
            for w in 0..W {
                for l in 0..N {
                    let y = y[run].row::<V, N>(column + w * V::LANES, l);
                    for row in 0..M {
                        sum[row][w] = V::splat(factors[run][row][l]).mul_add(y, sum[row][w]);
                    }
                }
            }
        }
        for row in 0..M {
            for w in 0..W {
                sum[row][w].store(sums.add(row * distance(M) + w * V::LANES));
            }
        }
    }
}

/// A product of [`FEW`] rows at most, whose right factor has contiguous columns: squares of it are transposed.
pub(super) struct FewDots<X: Factor, Y>(pub(super) Product<X, Matrix<Y>>);

/// The most rows whose sums stay in registers, next to a square.
pub(super) fn most_dot_rows<V: Vector>() -> usize {
    FEW.min(2 * V::TILE)
}

impl<X: Factor, Y: Factor<Sum = X::Sum>, V: Vector<Element = X::Sum>> VectorWork<V> for FewDots<X, Y> {
    #[inline(always)]
    unsafe fn run(self) {
        // SAFETY: the caller's promise.
        unsafe {
            match self.0.size.0 {
                1 => self.rows::<V, 1>(),
                2 => self.rows::<V, 2>(),
                3 => self.rows::<V, 3>(),
                4 => self.rows::<V, 4>(),
                5 => self.rows::<V, 5>(),
                6 => self.rows::<V, 6>(),
                7 => self.rows::<V, 7>(),
                _ => self.rows::<V, FEW>(),
            }
        }
    }
}

impl<X: Factor, Y: Factor<Sum = X::Sum>> FewDots<X, Y> {
    /// # Safety
    /// As [`Product::run`], with `M` rows, and a right factor of contiguous columns.
    #[inline(always)]
    unsafe fn rows<V: Vector<Element = X::Sum>, const M: usize>(self) {
        let Product {
            size: (_, n, k),
            out: (out, out_row, out_col),
            onto,
            x: (x, x_row, x_term),
            y: (y, _, y_col),
        } = self.0;
        // SAFETY: the caller's promise; rows, columns and terms exist.
        unsafe {
            for column in (0..n).step_by(V::LANES) {
                let columns = V::LANES.min(n - column);
                for first_term in (0..k).step_by(TERMS) {
                    let mut sums = [V::splat(X::Sum::ZERO); M];
                    let mut square = [X::Sum::ZERO; SQUARE];
                    for term in (first_term..k.min(first_term + TERMS)).step_by(V::LANES) {
                        let terms = V::LANES.min(k - term);
                        let from = (y.offset(column as isize * y_col).add(term), y_col as usize);
                        if (term * size_of::<Y>()).is_multiple_of(LINE) {
                            for next in 0..V::LANES {
                                V::prefetch(from.0.wrapping_offset((V::LANES + next) as isize * y_col));
                            }
                        }
                        V::transpose(from, (columns, terms), (square.as_mut_ptr(), V::LANES));
                        for l in 0..terms {
                            let y = V::load(square.as_ptr().add(l * V::LANES));
                            let x = x.offset((term + l) as isize * x_term);
                            for row in 0..M {
                                sums[row] = V::splat((*x.offset(row as isize * x_row)).widened())
                                    .mul_add(y, sums[row]);
                            }
                        }
                    }
                    let onto = Onto { add: onto.add || first_term > 0, ..onto };
                    let out = out.offset(column as isize * out_col);
                    for row in 0..M {
                        let out = out.offset(row as isize * out_row);
                        if out_col == 1 && columns == V::LANES {
                            onto.put(sums[row], out);
                            continue;
                        }
                        sums[row].store(square.as_mut_ptr());
                        for column in 0..columns {
                            onto.put_element(square[column], out.offset(column as isize * out_col));
                        }
                    }
                }
            }
        }
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
