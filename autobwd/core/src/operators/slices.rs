//! Division of tensors into parts, rows and positions along an axis.

/// The number of elements in a unit of parallel work.
pub const PART: usize = 1 << 16;

/// The elements of an operand for part number `part` of an output, which has `len` elements.
pub fn nth_part<T>(all: &[T], part: usize, len: usize) -> &[T] {
    &all[part * PART..][..len]
}

/// The number of positions before, on and after an axis.
pub fn outer_axis_inner(dims: &[usize], axis: usize) -> (usize, usize, usize) {
    (dims[..axis].iter().product(), dims[axis], dims[axis + 1..].iter().product())
}

/// Calls `each(row, column, piece)` for every piece of `part`. The first element of `part` has index `at` in rows of
/// `width` elements. A piece lies in one row and has at most `longest` elements.
pub fn pieces<T>(
    part: &mut [T],
    at: usize,
    width: usize,
    longest: usize,
    mut each: impl FnMut(usize, usize, &mut [T]),
) {
    if part.is_empty() {
        return;
    }
    // For short rows, divisions would be the largest cost.
    let (mut row, mut column) = (at / width, at % width);
    let mut rest = part;
    while !rest.is_empty() {
        let len = (width - column).min(longest).min(rest.len());
        let (piece, tail) = rest.split_at_mut(len);
        each(row, column, piece);
        column += len;
        if column == width {
            (row, column) = (row + 1, 0);
        }
        rest = tail;
    }
}
