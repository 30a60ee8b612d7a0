//! Matrix products (GEMM) on one thread, by a library.
#![allow(unsafe_code)]

#[cfg(all(feature = "asm", target_arch = "x86_64"))]
mod assembly;
mod few_rows;

use std::ops;

use few_rows::FewRows;

use crate::{Buf, Element, Result};

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
    pub(super) fn checked_len(&self) -> Option<usize> {
        stride(self.mat.data.len(), self.mat.rows, self.mat.cols, self.stride)
    }

    /// Elements from one row to the next, and from one column to the next, as read.
    pub(super) fn strides(&self) -> (isize, isize) {
        // The length of a slice fits into `isize`.
        let stride = self.stride as isize;
        if self.mat.transposed { (1, stride) } else { (stride, 1) }
    }
}

/// The stride of a matrix, at most `len`, if `len` elements contain it. The stride of a single row is irrelevant.
#[inline]
pub(super) fn stride(len: usize, rows: usize, cols: usize, stride: usize) -> Option<usize> {
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

/// # Safety
/// The pointers lead to matrices of these sizes with these strides; nothing else uses the rectangle of `out` meanwhile.
pub(super) unsafe fn gemm_into<T: GemmElement>(
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
