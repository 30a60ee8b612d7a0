//! The one door to matrix products.
//!
//! A product is always cut in the same parts, whoever computes them, so that its bits do not depend on the number of
//! workers.
#![allow(unsafe_code)]

use super::Cx;
use crate::{Buf, Element, Error, ErrorKind, Result};

/// A matrix in row-major order, possibly read as its transpose.
#[derive(Clone, Copy)]
pub struct Mat<'a, T> {
    /// The elements.
    pub data: &'a [T],
    /// Rows as stored.
    pub rows: usize,
    /// Columns as stored.
    pub cols: usize,
    /// Read it as its transpose.
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

    /// Elements from one row to the next, and from one column to the next.
    fn strides(&self) -> (isize, isize) {
        let cols = self.cols as isize;
        if self.transposed { (1, cols) } else { (cols, 1) }
    }
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

/// Below that many multiplications, some ten microseconds, a product is not worth sharing.
const SHARED: usize = 1 << 20;
/// Parts are cut at multiples of that many rows or columns.
const GRAIN: usize = 16;

/// Element types that products exist for.
pub trait Product: Element {
    /// 1.
    const ONE: Self;
    /// 0.
    const ZERO: Self;
}
impl Product for f32 {
    const ONE: f32 = 1.0;
    const ZERO: f32 = 0.0;
}
impl Product for f64 {
    const ONE: f64 = 1.0;
    const ZERO: f64 = 0.0;
}

/// Makes the libraries allocate what they keep for each thread.
pub(super) fn warm_up() {
    fn once<T: Product>() {
        let (x, y, mut out) = ([T::ONE; 256], [T::ONE; 256], [T::ZERO; 256]);
        // SAFETY: three matrices of 16 by 16 in row-major order, `out` is written by nobody else.
        unsafe {
            gemm_into::<T>(
                (16, 16, 16),
                (out.as_mut_ptr(), 16),
                false,
                (x.as_ptr(), 16, 1),
                (y.as_ptr(), 16, 1),
            )
        };
    }
    once::<f32>();
    once::<f64>();
}

struct Start<T>(*mut T);
// SAFETY: parts write disjoint rows or columns.
unsafe impl<T> Sync for Start<T> {}

impl Cx {
    /// `out = x · y`, or `out += x · y` where `add`, in row-major order.
    ///
    /// # Errors
    /// Sizes that do not fit each other.
    pub fn product<T: Product>(&self, out: &mut [T], add: bool, x: Mat<'_, T>, y: Mat<'_, T>) -> Result<()> {
        let ((m, k), (k2, n)) = (x.shape(), y.shape());
        let fits = |data: &[T], rows: usize, cols: usize| rows.checked_mul(cols) == Some(data.len());
        if k != k2 || !fits(out, m, n) || !fits(x.data, m, k) || !fits(y.data, k, n) {
            let text =
                format!("no product of {:?} and {:?} with {} elements", x.shape(), y.shape(), out.len());
            return Err(Error::new(ErrorKind::Shape, text));
        }
        if k == 0 || out.is_empty() {
            if !add {
                out.fill(T::ZERO);
            }
            return Ok(());
        }
        let ((x_row, x_col), (y_row, y_col)) = (x.strides(), y.strides());
        let start = Start(out.as_mut_ptr());
        let part = |rows: (usize, usize), cols: (usize, usize)| {
            let start = &start;
            // SAFETY: the sizes were checked above; parts write disjoint rectangles of `out`, which is borrowed for
            // the whole call; `T` is `f32` or `f64`, for which `gemm` is defined.
            unsafe {
                let out = start.0.add(rows.0 * n + cols.0);
                let x = x.data.as_ptr().offset(rows.0 as isize * x_row);
                let y = y.data.as_ptr().offset(cols.0 as isize * y_col);
                gemm_into::<T>(
                    (rows.1 - rows.0, cols.1 - cols.0, k),
                    (out, n as isize),
                    add,
                    (x, x_row, x_col),
                    (y, y_row, y_col),
                );
            }
        };
        if m.saturating_mul(n).saturating_mul(k) < SHARED {
            part((0, m), (0, n));
            return Ok(());
        }
        let cut = |len: usize| (len / 2).next_multiple_of(GRAIN).min(len);
        let half = |len: usize, i: usize| if i == 0 { (0, cut(len)) } else { (cut(len), len) };
        self.parts(2, 2, &|i, _| if m >= n { part(half(m, i), (0, n)) } else { part((0, m), half(n, i)) });
        Ok(())
    }
}

/// # Safety
/// The pointers lead to matrices of these sizes with these strides; nobody else uses the rectangle of `out` meanwhile.
unsafe fn gemm_into<T: Product>(
    (m, n, k): (usize, usize, usize),
    (out, out_row): (*mut T, isize),
    add: bool,
    (x, x_row, x_col): (*const T, isize, isize),
    (y, y_row, y_col): (*const T, isize, isize),
) {
    if m == 0 || n == 0 {
        return;
    }
    #[cfg(all(feature = "asm", target_arch = "x86_64"))]
    if let Some(instructions) = assembly::instructions() {
        // SAFETY: passed on; the machine has these instructions.
        return unsafe {
            assembly::gemm_into(
                instructions,
                (m, n, k),
                (out, out_row),
                add,
                (x, x_row, x_col),
                (y, y_row, y_col),
            )
        };
    }
    let parallelism = gemm::Parallelism::None;
    // SAFETY: passed on; `T` is `f32` or `f64`, for which `gemm` is defined.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            out,
            1,
            out_row,
            add,
            x,
            x_col,
            x_row,
            y,
            y_col,
            y_row,
            T::ONE,
            T::ONE,
            false,
            false,
            false,
            parallelism,
        );
    }
}

#[cfg(all(feature = "asm", target_arch = "x86_64"))]
mod assembly {
    use std::{arch::x86_64::_mm256_zeroupper, ptr::null};

    use private_gemm_x86::{Accum, DType, DstKind, IType, InstrSet, gemm};

    use super::Product;
    use crate::lanes::{Isa, isa};

    /// The instructions to use, if the machine has any of those that the library knows.
    pub(super) fn instructions() -> Option<InstrSet> {
        match isa() {
            Isa::Baseline => None,
            Isa::Avx2 => Some(InstrSet::Avx256),
            Isa::Avx512 => Some(InstrSet::Avx512),
        }
    }

    /// # Safety
    /// As `gemm_into` outside, on a machine with these instructions.
    pub(super) unsafe fn gemm_into<T: Product>(
        instructions: InstrSet,
        (m, n, k): (usize, usize, usize),
        (out, out_row): (*mut T, isize),
        add: bool,
        (x, x_row, x_col): (*const T, isize, isize),
        (y, y_row, y_col): (*const T, isize, isize),
    ) {
        let dtype = if T::DTYPE == crate::DType::F64 { DType::F64 } else { DType::F32 };
        let beta = if add { Accum::Add } else { Accum::Replace };
        let one = T::ONE;
        // SAFETY: the caller's promises; no row or column indices and no diagonal are used.
        unsafe {
            gemm(
                dtype,
                IType::U64,
                instructions,
                m,
                n,
                k,
                out.cast(),
                out_row,
                1,
                null(),
                null(),
                DstKind::Full,
                beta,
                x.cast(),
                x_row,
                x_col,
                false,
                null(),
                0,
                y.cast(),
                y_row,
                y_col,
                false,
                (&raw const one).cast(),
                1,
            );
            clean_up();
        }
    }

    /// The assembly leaves the upper halves of the vector registers dirty, which makes the SSE code that follows three
    /// times slower.
    #[target_feature(enable = "avx")]
    fn clean_up() {
        _mm256_zeroupper();
    }
}
