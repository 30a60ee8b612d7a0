//! Matrix products (GEMM), by a library.
//!
//! A product is always divided into the same parts, so that its bits do not depend on the number of workers.
#![allow(unsafe_code)]

#[cfg(all(feature = "asm", target_arch = "x86_64"))]
mod assembly;
mod few_rows;

use std::ops;

use few_rows::FewRows;

use super::{Cx, pool::SharedStart};
use crate::{Buf, Element, Error, ErrorKind, Result};

/// A matrix in row-major order, possibly read as its transpose.
#[derive(Clone, Copy, Debug)]
pub struct Mat<'a, T> {
    /// The elements.
    pub data: &'a [T],
    /// Rows as stored.
    pub rows: usize,
    /// Columns as stored.
    pub cols: usize,
    /// Whether it is read as its transpose.
    pub transposed: bool,
}

impl<T> Mat<'_, T> {
    /// Rows and columns as read.
    pub fn shape(&self) -> (usize, usize) {
        if self.transposed { (self.cols, self.rows) } else { (self.rows, self.cols) }
    }

    /// The transpose.
    #[must_use]
    pub fn t(self) -> Self {
        Mat { transposed: !self.transposed, ..self }
    }
}

/// A matrix with a distance of `stride` elements between rows, as stored, such as a part of a larger one.
#[derive(Clone, Copy, Debug)]
pub struct Strided<'a, T> {
    /// Rows and columns; the slice may continue after the last row.
    pub mat: Mat<'a, T>,
    /// Elements from one row to the next, at least the length of a row; irrelevant for a single row.
    pub stride: usize,
}

impl<'a, T> From<Mat<'a, T>> for Strided<'a, T> {
    fn from(mat: Mat<'a, T>) -> Strided<'a, T> {
        Strided { stride: mat.cols, mat }
    }
}

impl<T> Strided<'_, T> {
    /// The transpose.
    #[must_use]
    pub fn t(self) -> Self {
        Strided { mat: self.mat.t(), ..self }
    }

    /// The stride, limited to the number of elements, if the slice contains the whole matrix.
    #[inline]
    fn checked_len(&self) -> Option<usize> {
        stride(self.mat.data.len(), self.mat.rows, self.mat.cols, self.stride)
    }

    /// Elements from one row to the next, and from one column to the next, as read.
    fn strides(&self) -> (isize, isize) {
        // The length of a slice fits into `isize`.
        let stride = self.stride as isize;
        if self.mat.transposed { (1, stride) } else { (stride, 1) }
    }
}

/// The stride of a matrix, at most `len`, if `len` elements contain it. The stride of a single row is irrelevant.
#[inline]
fn stride(len: usize, rows: usize, cols: usize, stride: usize) -> Option<usize> {
    if cols > stride {
        return None;
    }
    if rows <= 1 {
        return (rows == 0 || cols <= len).then_some(cols.min(len));
    }
    // The second row begins within the slice, so that the stride is at most `len`.
    let end = (rows - 1).checked_mul(stride)?.checked_add(cols)?;
    (end <= len).then_some(stride)
}

impl Buf<'_> {
    /// The elements as a matrix.
    ///
    /// # Errors
    /// As [`slice`](Buf::slice), and a shape of another rank.
    pub fn mat<T: Element>(&self) -> Result<Mat<'_, T>> {
        let &[rows, cols] = self.dims() else { return Err(self.wrong("a matrix is needed")) };
        Ok(Mat { data: self.slice()?, rows, cols, transposed: false })
    }
}

/// The number of multiplications from which a product is divided between workers; it takes some ten microseconds.
const SHARED: usize = 1 << 20;
/// Parts are divided at multiples of this many rows or columns.
const GRAIN: usize = 16;
/// The number of multiplications up to which calling a library takes longer than the product.
const TINY: usize = 512;

/// A pointer to the first element of a matrix, and the strides of its rows and columns.
type Matrix<T> = (*const T, isize, isize);

/// Seals [`GemmElement`]: the libraries support no other types.
mod sealed {
    use super::Matrix;

    pub trait GemmKernel: Sized {
        /// `self * x + y`, rounded once.
        fn mul_add(self, x: Self, y: Self) -> Self;

        /// `out = scale · x · y`, or with `add`, `out += scale · x · y`; columns of `out` are contiguous.
        ///
        /// # Safety
        /// As `gemm_into`.
        unsafe fn fallback(
            size: (usize, usize, usize),
            out: (*mut Self, isize),
            onto: (bool, Self),
            x: Matrix<Self>,
            y: Matrix<Self>,
        );
    }
    macro_rules! product {
        ($t:ident, $gemm:ident) => {
            impl GemmKernel for $t {
                #[inline(always)]
                fn mul_add(self, x: $t, y: $t) -> $t {
                    self.mul_add(x, y)
                }

                unsafe fn fallback(
                    (m, n, k): (usize, usize, usize),
                    (out, out_row): (*mut $t, isize),
                    (add, scale): (bool, $t),
                    (x, x_row, x_col): Matrix<$t>,
                    (y, y_row, y_col): Matrix<$t>,
                ) {
                    let beta = if add { 1.0 } else { 0.0 };
                    // SAFETY: the caller's promises; if `beta` is 0, `out` is only written.
                    unsafe {
                        matrixmultiply::$gemm(
                            m, k, n, scale, x, x_row, x_col, y, y_row, y_col, beta, out, out_row, 1,
                        )
                    }
                }
            }
        };
    }
    product!(f32, sgemm);
    product!(f64, dgemm);
}

/// Element types of matrix products: `f32` and `f64`.
pub trait GemmElement:
    sealed::GemmKernel + Element + ops::Add<Output = Self> + ops::Mul<Output = Self>
{
    /// 1.
    const ONE: Self;
    /// 0.
    const ZERO: Self;
}
impl GemmElement for f32 {
    const ONE: f32 = 1.0;
    const ZERO: f32 = 0.0;
}
impl GemmElement for f64 {
    const ONE: f64 = 1.0;
    const ZERO: f64 = 0.0;
}

/// Whether the library in use allocates memory for each product; the fallback does.
pub fn products_allocate() -> bool {
    #[cfg(all(feature = "asm", target_arch = "x86_64"))]
    return assembly::instructions().is_none();
    #[cfg(not(all(feature = "asm", target_arch = "x86_64")))]
    true
}

/// Makes the libraries allocate their thread-local memory.
pub(super) fn warm_up() {
    fn warm_up_library<T: GemmElement>() {
        let (x, y, mut out) = ([T::ONE; 256], [T::ONE; 256], [T::ZERO; 256]);
        // SAFETY: three matrices of 16 by 16 in row-major order; nothing else writes `out`.
        unsafe {
            gemm_into::<T>(
                (16, 16, 16),
                (out.as_mut_ptr(), 16),
                (false, T::ONE),
                (x.as_ptr(), 16, 1),
                (y.as_ptr(), 16, 1),
            )
        };
    }
    warm_up_library::<f32>();
    warm_up_library::<f64>();
}

impl Cx {
    /// `out = x · y`, or with `add`, `out += x · y`, in row-major order.
    ///
    /// # Errors
    /// Incompatible sizes.
    pub fn product<T: GemmElement>(
        &self,
        out: &mut [T],
        add: bool,
        x: Mat<'_, T>,
        y: Mat<'_, T>,
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
    pub fn product_add<T: GemmElement>(
        &self,
        out: &mut [T],
        scale: T,
        x: Mat<'_, T>,
        y: Mat<'_, T>,
    ) -> Result<()> {
        let cols = y.shape().1;
        self.product_scaled(out, cols, (true, scale), x.into(), y.into())
    }

    /// As [`product`](Cx::product), for matrices that may be parts of larger ones; rows of `out` are `stride` elements
    /// apart, and the elements between them stay unchanged.
    ///
    /// # Errors
    /// As [`product`](Cx::product); a row that is longer than its stride.
    pub fn product_strided<T: GemmElement>(
        &self,
        out: &mut [T],
        stride: usize,
        add: bool,
        x: Strided<'_, T>,
        y: Strided<'_, T>,
    ) -> Result<()> {
        self.product_scaled(out, stride, (add, T::ONE), x, y)
    }

    /// `out = scale · x · y`, or with `add`, `out += scale · x · y`.
    fn product_scaled<T: GemmElement>(
        &self,
        out: &mut [T],
        stride: usize,
        (add, scale): (bool, T),
        x: Strided<'_, T>,
        y: Strided<'_, T>,
    ) -> Result<()> {
        let ((m, k), (k2, n)) = (x.mat.shape(), y.mat.shape());
        let fitting = (x.checked_len(), y.checked_len(), self::stride(out.len(), m, n, stride));
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
            out.chunks_mut(stride).take(m).for_each(|row| row[..n].fill(T::ZERO));
            return Ok(());
        }
        let work = m.saturating_mul(n).saturating_mul(k);
        if work <= TINY && !y.mat.transposed {
            tiny(out, (n, stride), (add, scale), x, y);
            return Ok(());
        }
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
            // slice. Parts write disjoint rectangles of `out`, which is borrowed for the whole call. `T` is `f32` or
            // `f64`.
            unsafe {
                let out = start.0.add(rows.0 * stride + cols.0);
                let x = x.mat.data.as_ptr().offset(rows.0 as isize * x_row);
                let y = y.mat.data.as_ptr().offset(cols.0 as isize * y_col);
                gemm_into::<T>(
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
        let cut = |len: usize| (len / 2).next_multiple_of(GRAIN).min(len);
        let half = |len: usize, i: usize| if i == 0 { (0, cut(len)) } else { (cut(len), len) };
        self.parts(2, 2, &|i, _| if m >= n { part(half(m, i), (0, n)) } else { part((0, m), half(n, i)) });
        Ok(())
    }
}

/// The product of a few rows and columns; rows of `y` are contiguous.
fn tiny<T: GemmElement>(
    out: &mut [T],
    (n, stride): (usize, usize),
    onto: (bool, T),
    x: Strided<'_, T>,
    y: Strided<'_, T>,
) {
    let ((m, k), (row, col)) = (x.mat.shape(), x.strides());
    let (mut i, y) = (0, |at: usize| (&y.mat.data[at..], y.stride));
    while i < m {
        let x = |r: usize, l: usize| x.mat.data[(i + r) * row as usize + l * col as usize];
        let rows = if m - i < 4 { 1 } else { 4 };
        let mut at = 0;
        while at < n {
            let (out, y) = ((&mut out[i * stride + at..], stride), y(at));
            at += match (rows, n - at) {
                (1, 8..) => strip::<T, 1, 8>(out, onto, k, x, y),
                (1, 4..8) => strip::<T, 1, 4>(out, onto, k, x, y),
                (1, _) => strip::<T, 1, 1>(out, onto, k, x, y),
                (_, 8..) => strip::<T, 4, 8>(out, onto, k, x, y),
                (_, 4..8) => strip::<T, 4, 4>(out, onto, k, x, y),
                (..) => strip::<T, 4, 1>(out, onto, k, x, y),
            };
        }
        i += rows;
    }
}

/// A block of `ROWS` by `N` elements of a product; returns `N`.
#[inline(always)]
fn strip<T: GemmElement, const ROWS: usize, const N: usize>(
    (out, out_stride): (&mut [T], usize),
    (add, scale): (bool, T),
    k: usize,
    x: impl Fn(usize, usize) -> T,
    (y, y_stride): (&[T], usize),
) -> usize {
    let mut sums = [[T::ZERO; N]; ROWS];
    for l in 0..k {
        let y = &y[l * y_stride..][..N];
        for (r, sums) in sums.iter_mut().enumerate() {
            let x = x(r, l);
            sums.iter_mut().zip(y).for_each(|(sum, y)| *sum = *sum + x * *y);
        }
    }
    for (r, sums) in sums.into_iter().enumerate() {
        for (out, sum) in out[r * out_stride..][..N].iter_mut().zip(sums) {
            *out = if add { *out + scale * sum } else { scale * sum };
        }
    }
    N
}

#[cold]
fn no_product<T>(x: &Mat<'_, T>, y: &Mat<'_, T>, out: usize) -> Error {
    let text = format!("no product of {:?} and {:?} with {out} elements", x.shape(), y.shape());
    Error::new(ErrorKind::Shape, text)
}

/// # Safety
/// The pointers lead to matrices of these sizes with these strides; nothing else uses the rectangle of `out` meanwhile.
unsafe fn gemm_into<T: GemmElement>(
    (m, n, k): (usize, usize, usize),
    (out, out_row): (*mut T, isize),
    (add, scale): (bool, T),
    x: Matrix<T>,
    y: Matrix<T>,
) {
    if m == 0 || n == 0 {
        return;
    }
    if let Some(few) = FewRows::new((m, n, k), (out, out_row), (add, scale), x, y) {
        // SAFETY: the caller's promise.
        return unsafe { few.run() };
    }
    let ((x, x_row, x_col), (y, y_row, y_col)) = (x, y);
    #[cfg(all(feature = "asm", target_arch = "x86_64"))]
    if let Some(instructions) = assembly::instructions() {
        // SAFETY: the caller's promise; the machine has these instructions.
        return unsafe {
            assembly::gemm_into(
                instructions,
                (m, n, k),
                (out, out_row),
                (add, scale),
                (x, x_row, x_col),
                (y, y_row, y_col),
            )
        };
    }
    // SAFETY: the caller's promise.
    unsafe { T::fallback((m, n, k), (out, out_row), (add, scale), (x, x_row, x_col), (y, y_row, y_col)) }
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
