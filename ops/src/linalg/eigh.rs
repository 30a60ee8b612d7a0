//! Eigenvalues and eigenvectors of symmetric matrices.

use autobwd::{
    Buf, Composed, Composition, Cx, Dims, Expr, Infer, Kernel, Meta, New, Result, Var,
    check::*,
    emit,
    op::{attr_enum, with_float},
    register_op,
    tensor::Dim,
};

use super::{cholesky::DEFINITE, cubic, size, square, transposed};
use crate::{
    Math,
    kernel_helpers::{KernelFloat, wide},
    math::like,
    matmul::product,
};

attr_enum! {
    /// The part of a symmetric matrix that is read.
    pub enum Triangle {
        /// The lower triangle.
        Lower = "L",
        /// The upper triangle.
        Upper = "U",
    }
}

/// Eigenvalues and orthonormal eigenvectors of symmetric matrices: `x · v = v · w`, with eigenvalues on the diagonal of `w`, by cyclic Jacobi rotations
/// (Golub and Van Loan, 2013, section 8.5).
///
/// The element of an eigenvector with the largest size is positive. The gradient is symmetric; eigenvectors of equal
/// eigenvalues have none.
#[register_op(grad = EighGrad, infallible, primitive)]
pub struct Eigh<V = Var> {
    /// Symmetric matrices, `[.., n, n]`.
    #[input]
    pub x: V,
    /// In ascending order, `[.., n]`.
    #[output]
    pub eigenvalues: V,
    /// Eigenvectors as columns, `[.., n, n]`.
    #[output(like = x)]
    pub eigenvectors: V,
    /// The triangle of `x` that is read.
    #[attr("UPLO", default = Triangle::Lower)]
    pub uplo: Triangle,
}
impl Infer for Eigh<Meta> {
    fn infer(&mut self) -> Result<()> {
        square(&self.x)?;
        let dims = self.x.dims.iter().take(self.x.rank() - 1).copied().collect::<Dims>();
        self.eigenvalues.set(self.x.dtype, dims);
        Ok(())
    }

    fn flops(&self) -> Dim {
        Dim::from(64) * cubic(&self.x)
    }
}
impl Kernel for Eigh<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let (n, is_upper) = (size(&self.x), self.uplo == Triangle::Upper);
        with_float!(self.x, T => cx.scratch::<f64, _>(2 * n * n, |scratch| {
            let (matrix, vectors) = scratch.split_at_mut(n * n);
            let all = self.x.slice::<T>()?.chunks_exact((n * n).max(1));
            let values = self.eigenvalues.slice_mut::<T>()?.chunks_exact_mut(n.max(1));
            let outs = self.eigenvectors.slice_mut::<T>()?.chunks_exact_mut((n * n).max(1));
            for ((x, values), out) in all.zip(values).zip(outs) {
                for row in 0..n {
                    for column in 0..n {
                        let (low, high) = (row.min(column), row.max(column));
                        let at = if is_upper { low * n + high } else { high * n + low };
                        matrix[row * n + column] = wide(x[at]);
                        vectors[row * n + column] = f64::from(u8::from(row == column));
                    }
                }
                diagonalise(matrix, vectors, n);
                for place in 0..n {
                    // Selection in ascending order; equal ones keep their order.
                    let rank = |i: usize| {
                        let value = matrix[i * n + i];
                        let before = |j: &usize| matrix[j * n + j] < value || (matrix[j * n + j] == value && *j < i);
                        (0..n).filter(before).count()
                    };
                    let from = (0..n).find(|i| rank(*i) == place).unwrap_or(place);
                    values[place] = T::of(matrix[from * n + from]);
                    let largest = (0..n).map(|row| vectors[row * n + from]).fold(0.0, |best: f64, x| {
                        if x.abs() > best.abs() { x } else { best }
                    });
                    let sign = if largest < 0.0 { -1.0 } else { 1.0 };
                    (0..n).for_each(|row| out[row * n + place] = T::of(sign * vectors[row * n + from]));
                }
            }
            Ok(())
        }))
    }

    fn scratch_bytes(&self, _: usize) -> usize {
        let n = size(&self.x);
        n.saturating_mul(n).saturating_mul(2 * size_of::<f64>())
    }
}
autobwd::samples!(
    Eigh,
    [
        eigh(given([2, 3, 3], DEFINITE), Triangle::Lower).not_a_derivative(ONE_TRIANGLE),
        eigh(given([2, 3, 3], DEFINITE), Triangle::Upper).not_a_derivative(ONE_TRIANGLE),
        eigh(given([2, 2], [1.0, 0.5, -0.25, 3.0]), Triangle::Lower).not_a_derivative(ONE_TRIANGLE),
        eigh(given([2, 2], [1.0, 0.5, -0.25, 3.0]), Triangle::Upper).not_a_derivative(ONE_TRIANGLE),
        eigh(given([2, 2], [2.0, 0.0, 0.0, 2.0]), Triangle::Upper).not_a_derivative(ONE_TRIANGLE),
        eigh(positive([2, 1, 1]), Triangle::Lower),
        eigh(uniform([0, 2, 2]), Triangle::Lower).not_a_derivative(ONE_TRIANGLE),
        eigh(uniform([2, 0, 0]), Triangle::Lower),
        Sample::of_program::<Eigh>([given([2, 3, 3], DEFINITE)], |_, x| Ok(symmetric(
            &x[0],
            Triangle::Lower
        ))),
        Sample::of_program::<Eigh>([given([2, 3, 3], DEFINITE)], |_, x| Ok(symmetric(
            &x[0],
            Triangle::Upper
        ))),
        eigh(uniform([2, 3]), Triangle::Lower).fails("`X`: square matrices are needed"),
        eigh(integers_below(9, [2, 2]), Triangle::Lower).fails("`X`: floating point numbers are needed"),
    ]
);

pub(super) const ONE_TRIANGLE: &str = "it reads one triangle, but its gradient is symmetric";

fn eigh(x: Draw, uplo: Triangle) -> Eigh<Draw> {
    Eigh { x, eigenvalues: out(), eigenvectors: out(), uplo }
}

/// The eigenvalues and eigenvectors of `x + xᵀ`.
fn symmetric(x: &Expr, uplo: Triangle) -> Vec<Expr> {
    let x = (x + transposed(x)).into();
    let op = emit(Eigh { x, eigenvalues: New, eigenvectors: New, uplo });
    vec![op.eigenvalues, op.eigenvectors]
}

/// The largest number of sweeps; convergence is quadratic, and needs fewer than ten for common matrices.
const SWEEPS: usize = 40;

/// Makes a symmetric matrix diagonal, and multiplies `vectors` by the rotations.
fn diagonalise(matrix: &mut [f64], vectors: &mut [f64], n: usize) {
    for _ in 0..SWEEPS {
        let mut is_diagonal = true;
        for p in 0..n {
            for q in p + 1..n {
                let (off, low, high) = (matrix[p * n + q], matrix[p * n + p], matrix[q * n + q]);
                // Smaller elements do not change the diagonal; NaN ends the sweeps.
                if off.is_nan() || off.abs() <= f64::EPSILON * f64::EPSILON * (low.abs() + high.abs()) {
                    continue;
                }
                is_diagonal = false;
                let ratio = (high - low) / (2.0 * off);
                let tangent = ratio.signum() / (ratio.abs() + (1.0 + ratio * ratio).sqrt());
                let cosine = 1.0 / (1.0 + tangent * tangent).sqrt();
                let sine = tangent * cosine;
                let turn = |x: f64, y: f64| (cosine * x - sine * y, sine * x + cosine * y);
                for k in 0..n {
                    let (x, y) = turn(matrix[k * n + p], matrix[k * n + q]);
                    (matrix[k * n + p], matrix[k * n + q]) = (x, y);
                    let (x, y) = turn(vectors[k * n + p], vectors[k * n + q]);
                    (vectors[k * n + p], vectors[k * n + q]) = (x, y);
                }
                for k in 0..n {
                    let (x, y) = turn(matrix[p * n + k], matrix[q * n + k]);
                    (matrix[p * n + k], matrix[q * n + k]) = (x, y);
                }
                (matrix[p * n + q], matrix[q * n + p]) = (0.0, 0.0);
            }
        }
        if is_diagonal {
            return;
        }
    }
}

/// `dx = (s + sᵀ) / 2` with `s = v · (dw + (vᵀ · dv) * f) · vᵀ`, `dw` a diagonal matrix, `f[i, j] = 1 / (w[j] - w[i])`, 0 for equal
/// eigenvalues (Giles, 2008, section 3.1).
#[register_op(grad_of = Eigh, grad = Composed, composed)]
pub struct EighGrad<V = Var> {
    pub eigenvalues: V,
    pub eigenvectors: V,
    pub deigenvalues: Option<V>,
    pub deigenvectors: Option<V>,
    #[output(like = eigenvectors)]
    pub dx: V,
}
impl Composition for EighGrad<Expr> {
    fn compose(&mut self) {
        let (w, v) = (&self.eigenvalues, &self.eigenvectors);
        // A diagonal matrix on the right scales the columns.
        let of_values = self.deigenvalues.as_ref().map(|dw| v * dw.unsqueeze(&[-2]));
        let of_vectors = self.deigenvectors.as_ref().map(|dv| {
            let gaps = w.unsqueeze(&[-2]) - w.unsqueeze(&[-1]);
            let is_equal = gaps.equal(&like(&gaps, 0.0));
            let inverse = is_equal.where_cond(&like(&gaps, 1.0), &gaps).reciprocal();
            let inverse = is_equal.where_cond(&like(&gaps, 0.0), &inverse);
            product([v, &(product([v, dv], [true, false]) * inverse)], [false; 2])
        });
        let left = [of_values, of_vectors].into_iter().flatten().reduce(|sum, term| sum + term);
        let s = product([&left.unwrap_or_else(|| like(v, 0.0)), v], [false, true]);
        self.dx = (&s + &transposed(&s)) * 0.5;
    }
}
