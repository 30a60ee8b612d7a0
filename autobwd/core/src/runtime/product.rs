//! Matrix products of kernels, divided between workers: the bits of an element do not depend on the elements around it.
#![allow(unsafe_code)]

use super::{
    Cx,
    gemm::{Factor, GemmElement, Mat, QuantizedMat, Strided, gemm_into, gemm_quantized_into},
    pool::SharedStart,
    submatrix::stride_within,
};
use crate::{Error, ErrorKind, Result};

/// The number of multiplications from which a product is divided between workers; it takes some ten microseconds.
const SHARED: usize = 1 << 20;
/// Rows, or columns, up to which a product takes as long as one of so many: memory bounds its time.
const FEW: usize = 8;
/// Parts are divided at multiples of this many rows or columns.
const GRAIN: usize = 16;

/// The multiplications of a product that takes as long.
fn work((m, n, k): (usize, usize, usize)) -> usize {
    m.max(FEW).saturating_mul(n.max(FEW)).saturating_mul(k)
}

impl Cx {
    /// `out = x · y`, or with `add`, `out += x · y`, in row-major order. Factors of 16 bits are summed in `f32`.
    ///
    /// # Errors
    /// Incompatible sizes.
    pub fn product<X: Factor, Y: Factor<Sum = X::Sum>>(
        &self,
        out: &mut [X::Sum],
        add: bool,
        x: Mat<'_, X>,
        y: Mat<'_, Y>,
    ) -> Result<()> {
        let ((m, k), (k2, n)) = (x.shape(), y.shape());
        let whole = |len: usize, rows: usize, cols: usize| rows.checked_mul(cols) == Some(len);
        if !whole(out.len(), m, n) || !whole(x.data.len(), m, k) || !whole(y.data.len(), k2, n) {
            return Err(no_product(&x, &y, out.len()));
        }
        self.product_strided(out, n, add, x.into(), y.into())
    }

    /// `out += scale · x · y`, in row-major order: a gradient step without a buffer for the gradient.
    ///
    /// # Errors
    /// Incompatible sizes.
    pub fn product_add<X: Factor, Y: Factor<Sum = X::Sum>>(
        &self,
        out: &mut [X::Sum],
        scale: X::Sum,
        x: Mat<'_, X>,
        y: Mat<'_, Y>,
    ) -> Result<()> {
        let cols = y.shape().1;
        self.product_scaled(out, cols, (true, scale), x.into(), y.into())
    }

    /// As [`product`](Cx::product), for matrices that may be parts of larger ones; rows of `out` are `stride` elements
    /// apart, and the elements between them stay unchanged.
    ///
    /// # Errors
    /// As [`product`](Cx::product); a row that is longer than its stride.
    pub fn product_strided<X: Factor, Y: Factor<Sum = X::Sum>>(
        &self,
        out: &mut [X::Sum],
        stride: usize,
        add: bool,
        x: Strided<'_, X>,
        y: Strided<'_, Y>,
    ) -> Result<()> {
        self.product_scaled(out, stride, (add, X::Sum::ONE), x, y)
    }

    /// `out = x · y` in row-major order, for a left factor in row-major order; the numbers of `y` are computed from
    /// their codes while the product reads them.
    ///
    /// # Errors
    /// Incompatible sizes, a left factor that is read as its transpose.
    pub fn product_quantized<X: Factor>(
        &self,
        out: &mut [X::Sum],
        x: Mat<'_, X>,
        y: QuantizedMat<'_, X::Sum>,
    ) -> Result<()> {
        let ((m, k), (k2, n)) = (x.shape(), y.shape());
        let whole = |len: usize, rows: usize, cols: usize| rows.checked_mul(cols) == Some(len);
        let fits = whole(out.len(), m, n) && whole(x.data.len(), m, k) && k == k2;
        if !fits || x.transposed || !y.is_whole() {
            let (codes, scales, elements) = (y.codes.len(), y.scales.len(), out.len());
            let text = format!(
                "no product of {:?} and quantised {:?} of {codes} codes and {scales} scales with {elements} elements",
                (m, k),
                (k2, n)
            );
            return Err(Error::new(ErrorKind::Shape, text));
        }
        if k == 0 {
            out.fill(X::Sum::ZERO);
        }
        if m == 0 || n == 0 || k == 0 {
            return Ok(());
        }
        let work = work((m, n, k));
        let parts = if work < SHARED { 1 } else { self.threads().min(2 * work / SHARED) };
        let cut = |part: usize| (n * part / parts).next_multiple_of(GRAIN).min(n);
        let start = SharedStart(out.as_mut_ptr());
        self.parts(parts, parts, &|i, _| {
            let start = &start;
            let first = if i == 0 { 0 } else { cut(i) };
            let end = if i + 1 == parts { n } else { cut(i + 1) };
            if first < end {
                // SAFETY: the factors are whole. Parts write disjoint columns of `out`, which is borrowed for the whole
                // call.
                unsafe {
                    let out = (start.0.add(first), n as isize);
                    let x = (x.data.as_ptr(), k as isize, 1);
                    gemm_quantized_into((m, end - first, k), out, x, y, first);
                }
            }
        });
        Ok(())
    }

    /// `out = scale · x · y`, or with `add`, `out += scale · x · y`, for matrices as in
    /// [`product_strided`](Cx::product_strided).
    ///
    /// # Errors
    /// As [`product_strided`](Cx::product_strided).
    pub fn product_scaled<X: Factor, Y: Factor<Sum = X::Sum>>(
        &self,
        out: &mut [X::Sum],
        stride: usize,
        (add, scale): (bool, X::Sum),
        x: Strided<'_, X>,
        y: Strided<'_, Y>,
    ) -> Result<()> {
        let ((m, k), (k2, n)) = (x.mat.shape(), y.mat.shape());
        let fitting = (x.checked_len(), y.checked_len(), stride_within(out.len(), m, n, stride));
        let (Some(x_stride), Some(y_stride), Some(stride)) = fitting else {
            return Err(no_product(&x.mat, &y.mat, out.len()));
        };
        let (x, y) = (Strided { stride: x_stride, ..x }, Strided { stride: y_stride, ..y });
        if k != k2 {
            return Err(no_product(&x.mat, &y.mat, out.len()));
        }
        if m == 0 || n == 0 || (k == 0 && add) {
            return Ok(());
        }
        if k == 0 {
            out.chunks_mut(stride).take(m).for_each(|row| row[..n].fill(X::Sum::ZERO));
            return Ok(());
        }
        let work = work((m, n, k));
        let ((x_row, x_col), (y_row, y_col)) = (x.strides(), y.strides());
        let start = SharedStart(out.as_mut_ptr());
        let part = |rows: (usize, usize), cols: (usize, usize)| {
            let start = &start;
            // Half of a few rows may be empty: a pointer past the last one would be invalid.
            if rows.0 == rows.1 || cols.0 == cols.1 {
                return;
            }
            // SAFETY: the first elements of these rows and columns exist, since none of them is empty, and offsets are
            // below the lengths of slices: `stride` has checked that the last element of each matrix is within its
            // slice. Parts write disjoint rectangles of `out`, which is borrowed for the whole call.
            unsafe {
                let out = start.0.add(rows.0 * stride + cols.0);
                let x = x.mat.data.as_ptr().offset(rows.0 as isize * x_row);
                let y = y.mat.data.as_ptr().offset(cols.0 as isize * y_col);
                gemm_into(
                    (rows.1 - rows.0, cols.1 - cols.0, k),
                    (out, stride as isize),
                    (add, scale),
                    (x, x_row, x_col),
                    (y, y_row, y_col),
                );
            }
        };
        if work < SHARED {
            part((0, m), (0, n));
            return Ok(());
        }
        let (parts, by_rows) = (self.threads().min(2 * work / SHARED), m >= n);
        let len = if by_rows { m } else { n };
        let cut = |part: usize| (len * part / parts).next_multiple_of(GRAIN).min(len);
        self.parts(parts, parts, &|i, _| {
            let piece = (if i == 0 { 0 } else { cut(i) }, if i + 1 == parts { len } else { cut(i + 1) });
            if by_rows { part(piece, (0, n)) } else { part((0, m), piece) }
        });
        Ok(())
    }
}

#[cold]
fn no_product<X, Y>(x: &Mat<'_, X>, y: &Mat<'_, Y>, out: usize) -> Error {
    let text = format!("no product of {:?} and {:?} with {out} elements", x.shape(), y.shape());
    Error::new(ErrorKind::Shape, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Elements 0, 1, … of `rows` rows, `stride` apart.
    fn strided(data: &[f64], rows: usize, cols: usize, stride: usize) -> Strided<'_, f64> {
        Strided { mat: Mat { data, rows, cols, transposed: false }, stride }
    }

    #[test]
    fn parts_of_matrices_are_multiplied_and_their_surroundings_left_alone() -> Result<()> {
        let cx = Cx::new(2);
        let data: Vec<f64> = (0..40_000).map(|i| f64::from(i % 17)).collect();
        let at = |x: Strided<'_, f64>, row: usize, col: usize| {
            let (row, col) = if x.mat.transposed { (col, row) } else { (row, col) };
            x.mat.data[row * x.stride + col]
        };
        // Below and above the size from which products are divided.
        for (m, k, n) in [(2, 3, 4), (120, 110, 100)] {
            let lefts = [strided(&data, m, k, 130), strided(&data, k, m, 140).t()];
            let rights = [strided(&data, k, n, 150), strided(&data, n, k, 160).t()];
            for (x, y) in lefts.iter().flat_map(|x| rights.map(|y| (*x, y))) {
                let mut out = vec![-1.0; (m - 1) * (n + 5) + n];
                for times in [1.0, 2.0] {
                    cx.product_strided(&mut out, n + 5, times == 2.0, x, y)?;
                    for (i, out) in out.iter().enumerate() {
                        let (row, col) = (i / (n + 5), i % (n + 5));
                        let sum: f64 = (0..k).map(|l| at(x, row, l) * at(y, l, col.min(n - 1))).sum();
                        assert_eq!(*out, if col < n { times * sum } else { -1.0 });
                    }
                }
            }
        }
        Ok(())
    }

    #[test]
    fn scaled_products_are_added() -> Result<()> {
        let cx = Cx::new(2);
        for (m, k, n) in [(2, 3, 4), (120, 110, 100)] {
            let data: Vec<f64> = (0..m * k + k * n).map(|i| f64::from(i as u32 % 7)).collect();
            let x = Mat { data: &data[..m * k], rows: m, cols: k, transposed: false };
            let y = Mat { data: &data[m * k..], rows: k, cols: n, transposed: false };
            let (mut product, mut out) = (vec![0.0; m * n], vec![1.0; m * n]);
            cx.product(&mut product, false, x, y)?;
            cx.product_add(&mut out, -0.5, x, y)?;
            assert!(out.iter().zip(&product).all(|(out, product)| *out == 1.0 - 0.5 * product));
            assert!(cx.product_add(&mut out[1..], 1.0, x, y).is_err());
        }
        Ok(())
    }

    #[test]
    fn strided_products_refuse_what_does_not_fit() {
        let (cx, data) = (Cx::new(1), [1.0; 12]);
        let product = |out: &mut [f64], stride, x, y| cx.product_strided(out, stride, false, x, y);
        let (x, y) = (strided(&data, 2, 3, 4), strided(&data, 3, 2, 5));
        product(&mut [0.0; 5], 3, x, y).unwrap();
        assert!(product(&mut [0.0; 4], 3, x, y).is_err());
        assert!(product(&mut [0.0; 5], 1, x, y).is_err());
        assert!(product(&mut [0.0; 5], 3, x, x).is_err());
        assert!(product(&mut [0.0; 5], 3, x, strided(&data, 3, 2, 6)).is_err());
        assert!(product(&mut [0.0; 5], 3, strided(&data, 2, 3, usize::MAX), y).is_err());
        // An empty sum, with strided rows.
        let mut out = [1.0; 5];
        product(&mut out, 3, strided(&data, 2, 0, 0), strided(&[], 0, 2, 2)).unwrap();
        assert_eq!(out, [0.0, 0.0, 1.0, 0.0, 0.0]);
    }
}
