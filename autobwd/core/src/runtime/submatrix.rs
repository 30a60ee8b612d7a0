//! Parts of matrices.
#![allow(unsafe_code)]

use std::{marker::PhantomData, slice};

use crate::{Error, Result};

/// Some rows and columns of a matrix, which one worker writes.
#[derive(Debug)]
pub struct SubmatrixMut<'a, T> {
    start: *mut T,
    rows: usize,
    cols: usize,
    stride: usize,
    matrix: PhantomData<&'a mut [T]>,
}

impl<'a, T> SubmatrixMut<'a, T> {
    /// Rows and columns of a slice that begins with the first row; rows are `stride` elements apart.
    ///
    /// # Errors
    /// Rows outside of the slice, or longer than `stride`.
    pub fn of(data: &'a mut [T], [rows, cols]: [usize; 2], stride: usize) -> Result<SubmatrixMut<'a, T>> {
        let stride = stride_within(data.len(), rows, cols, stride);
        let stride = stride.ok_or_else(|| Error::internal("rows outside of their slice"))?;
        Ok(SubmatrixMut::new(data.as_mut_ptr(), [rows, cols], stride))
    }
}

impl<T> SubmatrixMut<'_, T> {
    /// Rows and columns of a matrix whose rows are `stride` elements apart: they are within the matrix, or empty, and no other
    /// submatrix has them.
    pub(super) fn new(start: *mut T, [rows, cols]: [usize; 2], stride: usize) -> Self {
        SubmatrixMut { start, rows, cols, stride, matrix: PhantomData }
    }

    /// Whether there are no elements, as the matrix is not wanted.
    pub fn is_empty(&self) -> bool {
        self.rows == 0 || self.cols == 0
    }

    /// Rows and columns.
    pub(super) fn size(&self) -> (usize, usize) {
        (self.rows, self.cols)
    }

    /// Whether there are `rows` rows of `cols` elements.
    pub(super) fn contains(&self, rows: usize, cols: usize) -> bool {
        rows <= self.rows && cols <= self.cols
    }

    /// The number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Elements from one row to the next.
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// A pointer to an element, which must exist before it is used.
    pub(super) fn pointer(&mut self, row: usize, col: usize) -> *mut T {
        self.start.wrapping_add(row * self.stride + col)
    }

    /// The elements of a row.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn row(&mut self, row: usize) -> &mut [T] {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        // SAFETY: the submatrix is within the matrix, has this row, and is the only one with these elements.
        unsafe { slice::from_raw_parts_mut(self.start.add(row * self.stride), self.cols) }
    }
}

/// The stride of a matrix, at most `len`, if `len` elements contain it. The stride of a single row is irrelevant.
#[inline]
pub(super) fn stride_within(len: usize, rows: usize, cols: usize, stride: usize) -> Option<usize> {
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
