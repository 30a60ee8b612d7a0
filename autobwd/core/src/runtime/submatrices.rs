//! Division of matrices into submatrices between workers.
#![allow(unsafe_code)]

use super::{Cx, pool::SharedStart, submatrix::SubmatrixMut};
use crate::{Error, Result};

/// A matrix in row-major order, which is divided into submatrices of equal size; the last ones of a row or column of
/// submatrices may be smaller.
#[derive(Debug)]
pub struct DividedMat<'a, T> {
    /// The elements; none if the matrix is not wanted.
    pub data: &'a mut [T],
    /// Columns of the matrix.
    pub cols: usize,
    /// Rows and columns of a submatrix.
    pub part: [usize; 2],
}

impl Cx {
    /// Divides matrices into a grid of submatrices: `work` gets the submatrices in row and column `[i, j]` of the
    /// grid, and an equal share of `scratch` for its worker. The submatrices of a column follow each other. A matrix
    /// has no elements in a part of the grid that it does not reach.
    ///
    /// # Errors
    /// Elements that are no whole rows; the errors of `work`, of the first part that fails.
    pub fn try_zip_submatrices_mut<T: Send, S: Send, const N: usize>(
        &self,
        matrices: [DividedMat<'_, T>; N],
        scratch: &mut [S],
        work: impl Fn([usize; 2], [SubmatrixMut<'_, T>; N], &mut [S]) -> Result<()> + Sync,
    ) -> Result<()> {
        let mut grid = [0, 0];
        for DividedMat { data, cols, part } in &matrices {
            if !data.len().is_multiple_of((*cols).max(1)) || *cols == 0 && !data.is_empty() {
                return Err(Error::internal("a matrix without whole rows"));
            }
            let rows = data.len().checked_div(*cols).unwrap_or(0);
            let cols = if rows == 0 { 0 } else { *cols };
            grid = [grid[0].max(rows.div_ceil(part[0].max(1))), grid[1].max(cols.div_ceil(part[1].max(1)))];
        }
        let matrices = matrices.map(|DividedMat { data, cols, part }| {
            let rows = data.len().checked_div(cols).unwrap_or(0);
            (SharedStart(data.as_mut_ptr()), [rows, cols], part.map(|len| len.max(1)))
        });
        self.try_parts(grid[0] * grid[1], scratch, |at, scratch| {
            let at = [at % grid[0], at / grid[0]];
            let submatrices = matrices.each_ref().map(|(start, size, part)| {
                let first = [0, 1].map(|axis| at[axis].saturating_mul(part[axis]).min(size[axis]));
                let [rows, cols] = [0, 1].map(|axis| part[axis].min(size[axis] - first[axis]));
                // SAFETY: the first element is within the matrix, or at its end, which an empty submatrix has.
                let start = unsafe { start.0.add((first[0] * size[1] + first[1]).min(size[0] * size[1])) };
                SubmatrixMut::new(start, [rows, cols], size[1])
            });
            work(at, submatrices, scratch)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_submatrix_is_written_once() -> Result<()> {
        for threads in [1, 3] {
            let cx = Cx::new(threads);
            let (mut left, mut right) = (vec![0; 5 * 7], vec![0; 3 * 4]);
            let matrices = [
                DividedMat { data: &mut left, cols: 7, part: [2, 3] },
                DividedMat { data: &mut right, cols: 4, part: [1, 2] },
            ];
            cx.try_zip_submatrices_mut(matrices, &mut vec![0; threads], |[i, j], parts, scratch| {
                assert_eq!(scratch.len(), 1);
                for mut part in parts {
                    for row in 0..part.rows() {
                        part.row(row).iter_mut().for_each(|x| *x += 10 * (i + 1) + j + 1);
                    }
                }
                Ok(())
            })?;
            let expected = |row: usize, col: usize| 10 * (row / 2 + 1) + col / 3 + 1;
            assert!((0..35).all(|at| left[at] == expected(at / 7, at % 7)), "{left:?}");
            let expected = |row: usize, col: usize| 10 * (row + 1) + col / 2 + 1;
            assert!((0..12).all(|at| right[at] == expected(at / 4, at % 4)), "{right:?}");
        }
        Ok(())
    }

    #[test]
    fn matrices_may_be_empty_but_have_whole_rows() -> Result<()> {
        let cx = Cx::new(2);
        let mut data = [0; 6];
        let empty = || DividedMat { data: &mut [], cols: 3, part: [1, 1] };
        let whole = DividedMat { data: &mut data, cols: 3, part: [usize::MAX, 2] };
        cx.try_zip_submatrices_mut([empty(), whole], &mut [0; 0], |[i, _], [nothing, mut part], _| {
            assert!(i == 0 && nothing.is_empty() && !part.is_empty());
            part.row(1).fill(1);
            Ok(())
        })?;
        assert_eq!(data, [0, 0, 0, 1, 1, 1]);
        let ragged = DividedMat { data: &mut data, cols: 4, part: [1, 1] };
        assert!(cx.try_zip_submatrices_mut([ragged], &mut [0; 0], |_, _, _| Ok(())).is_err());
        cx.try_zip_submatrices_mut([empty()], &mut [0; 0], |_, _, _| {
            Err(Error::internal("there are no parts"))
        })
    }
}
