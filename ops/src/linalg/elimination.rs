//! Gaussian elimination with partial pivoting.

/// Makes a matrix of `n` rows upper triangular, with the same steps on `m` right-hand sides. Returns the sign of the
/// permutation of rows, or `None` if the matrix is singular: a pivot is 0.
pub(super) fn eliminate(matrix: &mut [f64], sides: &mut [f64], n: usize, m: usize) -> Option<f64> {
    let mut sign = 1.0;
    for k in 0..n {
        let size = |row: &usize| matrix[row * n + k].abs();
        let pivot = (k + 1..n).fold(k, |best, row| if size(&row) > size(&best) { row } else { best });
        if matrix[pivot * n + k] == 0.0 {
            return None;
        }
        if pivot != k {
            sign = -sign;
            (0..n).for_each(|column| matrix.swap(pivot * n + column, k * n + column));
            (0..m).for_each(|column| sides.swap(pivot * m + column, k * m + column));
        }
        for row in k + 1..n {
            let factor = matrix[row * n + k] / matrix[k * n + k];
            subtract(matrix, n, row, k, factor);
            subtract(sides, m, row, k, factor);
        }
    }
    Some(sign)
}

/// Solves the equations of an upper triangular matrix in place of the right-hand sides.
pub(super) fn substitute(matrix: &[f64], sides: &mut [f64], n: usize, m: usize) {
    for k in (0..n).rev() {
        sides[k * m..][..m].iter_mut().for_each(|x| *x /= matrix[k * n + k]);
        for row in 0..k {
            subtract(sides, m, row, k, matrix[row * n + k]);
        }
    }
}

/// `rows[to] -= factor * rows[from]`
fn subtract(rows: &mut [f64], width: usize, to: usize, from: usize, factor: f64) {
    for column in 0..width {
        rows[to * width + column] -= factor * rows[from * width + column];
    }
}
