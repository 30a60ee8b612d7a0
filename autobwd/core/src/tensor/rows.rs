//! Row-sparse tensors, as views of memory.
//!
//! The gradient of an embedding table may be a variable of kind `SelectedRows`. Its `Meta` has the dimensions of the
//! dense tensor, and `rows`, the capacity, so that plans know its size in bytes. In memory, row indices come first and
//! the elements of rows after them.
//!
//! Each row stands once, in ascending order, whichever operator wrote it: writers add up repeated rows
//! (`operators/sparse_rows.rs`), readers never do. An input is dense unless its slot says `sparse` or `shape_only`: the
//! registry rejects others before any shape rule runs, and a `Buf` of rows gives no slice. A formula with a `sparse`
//! input also has a kernel, which runs outside of fused kernels if the input is sparse.

use std::ops::Range;

/// A row-sparse tensor: some of its rows, each once and in ascending order; all others are 0. Sparse gradients have
/// this form.
///
/// Rows are slices along the first dimension: the rows of a tensor `[height, d…]` have the shape `[d…]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rows<'a, T> {
    height: usize,
    width: usize,
    numbers: &'a [i64],
    values: &'a [T],
}

impl<'a, T> Rows<'a, T> {
    /// The rows of a tensor of shape `dims`. Row indices are used as long as they ascend and are in range, so that rows
    /// are valid for any content of memory.
    pub(super) fn new(dims: &[usize], numbers: &'a [i64], values: &'a [T]) -> Rows<'a, T> {
        let height = dims.first().copied().unwrap_or(0);
        let width = dims.iter().skip(1).fold(1, |n: usize, dim| n.saturating_mul(*dim));
        let mut next = 0;
        let ascends = |number: &&i64| match usize::try_from(**number) {
            Ok(row) if (next..height).contains(&row) => {
                next = row + 1;
                true
            }
            _ => false,
        };
        let there = numbers.iter().take_while(ascends).count();
        Rows { height, width, numbers: &numbers[..there], values: &values[..there * width] }
    }

    /// The number of rows of the dense tensor.
    pub fn height(&self) -> usize {
        self.height
    }

    /// The number of elements of a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// The row indices, ascending.
    pub fn indices(&self) -> &'a [i64] {
        self.numbers
    }

    /// The elements, row after row.
    pub fn values(&self) -> &'a [T] {
        self.values
    }

    /// Row indices and elements, row by row.
    pub fn iter(self) -> impl Iterator<Item = (usize, &'a [T])> {
        let values = move |i: usize| &self.values[i * self.width..][..self.width];
        self.numbers.iter().enumerate().map(move |(i, number)| (*number as usize, values(i)))
    }

    /// The rows with indices in a range.
    #[must_use]
    pub fn within(self, range: Range<usize>) -> Rows<'a, T> {
        let place = |end: usize| self.numbers.partition_point(|number| (*number as usize) < end);
        let first = place(range.start);
        let end = place(range.end).max(first);
        let values = &self.values[first * self.width..end * self.width];
        Rows { numbers: &self.numbers[first..end], values, ..self }
    }
}

/// Checks row indices that a kernel has written for a tensor of `height` rows: they ascend up to the first −1.
pub(super) fn check_row_indices(height: usize, numbers: &[i64]) -> Result<(), String> {
    let mut last = None;
    for number in numbers.iter().take_while(|number| **number != -1) {
        if usize::try_from(*number).ok().is_none_or(|row| row >= height) {
            return Err(format!("row {number} of a tensor of {height} rows"));
        }
        if let Some(last) = last.replace(number).filter(|last| *last >= number) {
            return Err(format!("row {number} after row {last}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_memory_holds_rows_ascend_and_exist() {
        let values: Vec<f32> = (0..10).map(|x| x as f32).collect();
        for (numbers, there) in [
            ([0, 3, 4, -1, -1], 3),
            ([3, 3, 4, 0, 0], 1),
            ([4, 5, 6, 7, 8], 1),
            ([i64::MIN, i64::MAX, 0, 0, 0], 0),
            ([0, 1, 2, 3, 4], 5),
        ] {
            let rows = Rows::new(&[5, 2], &numbers, &values);
            assert_eq!(rows.indices(), &numbers[..there]);
            assert_eq!(rows.values(), &values[..2 * there]);
            assert_eq!(rows.iter().count(), there);
        }
        let rows = Rows::new(&[9, 2], &[1, 4, 5, 8, -1], &values);
        assert_eq!(rows.within(2..8).iter().collect::<Vec<_>>(), [(4, &[2.0, 3.0][..]), (5, &[4.0, 5.0])]);
        assert!(rows.within(6..8).indices().is_empty());
        // Rows without elements, and a tensor without rows.
        assert_eq!(Rows::<f32>::new(&[3, 0], &[0, 2], &[]).iter().count(), 2);
        assert!(Rows::<f32>::new(&[0, 2], &[0], &[0.0, 0.0]).indices().is_empty());
    }
}
