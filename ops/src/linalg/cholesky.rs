//! The factorisation of Cholesky, and equations with its factors.

use autobwd::{
    Buf, Composed, Composition, Cx, Expr, Infer, Kernel, Meta, New, Result, Var, check::*, emit,
    op::with_float, register_op, tensor::Dim,
};

use super::{TriangularSolve, cubic, refused, size, solution, square, transposed, triangle};
use crate::{
    kernel_helpers::{KernelFloat, wide},
    matmul::product,
};

/// Triangular factors of symmetric positive definite matrices: `x = out · outᵀ` with `out` lower triangular, or
/// `x = outᵀ · out` with `out` upper triangular.
///
/// Only that triangle of `x` is read; the gradient is symmetric. A matrix that is not positive definite is an error, as
/// in the reference.
#[register_op(grad = CholeskyGrad, primitive)]
pub struct Cholesky<V = Var> {
    /// Symmetric matrices, `[.., n, n]`.
    #[input]
    pub x: V,
    /// Same shape as `x`, with 0 in the other triangle.
    #[output]
    pub out: V,
    /// Whether the factors are upper triangular.
    #[attr(default = false)]
    pub upper: bool,
}
impl Infer for Cholesky<Meta> {
    fn infer(&mut self) -> Result<()> {
        square(&self.x)?;
        self.out.like(&self.x);
        Ok(())
    }

    fn flops(&self) -> Dim {
        cubic(&self.x)
    }
}
impl Kernel for Cholesky<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let (n, upper) = (size(&self.x), self.upper);
        // In storage order of a lower triangle.
        let at = move |row: usize, column: usize| if upper { column * n + row } else { row * n + column };
        with_float!(self.x, T => cx.scratch::<f64, _>(n * n, |factor| {
            let all = self.x.slice::<T>()?.chunks_exact((n * n).max(1));
            let outs = self.out.slice_mut::<T>()?.chunks_exact_mut((n * n).max(1));
            for (i, (x, out)) in all.zip(outs).enumerate() {
                factor.fill(0.0);
                for row in 0..n {
                    for column in 0..=row {
                        let start = wide(x[at(row, column)]);
                        let rest = (0..column).fold(start, |rest, k| {
                            rest - factor[at(row, k)] * factor[at(column, k)]
                        });
                        if row == column && !(rest > 0.0 && rest.is_finite()) {
                            return Err(refused(&self.x, i, "not positive definite"));
                        }
                        let value = if row == column { rest.sqrt() } else { rest / factor[at(column, column)] };
                        factor[at(row, column)] = value;
                    }
                }
                out.iter_mut().zip(&*factor).for_each(|(to, from)| *to = T::of(*from));
            }
            Ok(())
        }))
    }

    fn scratch_bytes(&self, _: usize) -> usize {
        let n = size(&self.x);
        n.saturating_mul(n).saturating_mul(size_of::<f64>())
    }
}
autobwd::samples!(
    Cholesky,
    [
        cholesky(given([2, 3, 3], DEFINITE), false).not_a_derivative(ONE_TRIANGLE),
        cholesky(given([2, 3, 3], DEFINITE), true).not_a_derivative(ONE_TRIANGLE),
        cholesky(positive([2, 1, 1]), false),
        cholesky(uniform([0, 2, 2]), false).not_a_derivative(ONE_TRIANGLE),
        cholesky(uniform([2, 0, 0]), true),
        Sample::of_program::<Cholesky>([given([2, 3, 3], DEFINITE)], |_, x| Ok(vec![symmetric(
            &x[0], false
        )])),
        Sample::of_program::<Cholesky>([given([2, 3, 3], DEFINITE)], |_, x| Ok(vec![symmetric(&x[0], true)])),
        cholesky(given([2, 2, 2], [1.0, 0.0, 0.0, 2.0, 1.0, 2.0, 2.0, 4.0]), false)
            .fails("`X`: matrix 1 is not positive definite"),
        cholesky(uniform([2, 3]), false).fails("`X`: square matrices are needed"),
        cholesky(integers_below(9, [2, 2]), false).fails("`X`: floating point numbers are needed"),
    ]
);

const ONE_TRIANGLE: &str = "it reads one triangle, but its gradient is symmetric";

/// Two well-conditioned symmetric positive definite matrices of 3 rows.
pub(super) const DEFINITE: [f64; 18] = [
    2.0, 0.5, -0.25, 0.5, 3.0, 0.75, -0.25, 0.75, 2.5, //
    1.5, -0.25, 0.5, -0.25, 2.0, 0.25, 0.5, 0.25, 3.0,
];

fn cholesky(x: Draw, upper: bool) -> Cholesky<Draw> {
    Cholesky { x, out: out(), upper }
}

/// The factors of `x + xᵀ`.
fn symmetric(x: &Expr, upper: bool) -> Expr {
    emit(Cholesky { x: (x + transposed(x)).into(), out: New, upper }).out
}

/// For lower triangular `out`, `dx = (s + sᵀ) / 2` with `s = out⁻ᵀ · p · out⁻¹`, and `p` the lower triangle of
/// `outᵀ · dout` with half of its diagonal (Murray, 2016, section 3.2).
#[register_op(grad_of = Cholesky, grad = Composed, composed)]
pub struct CholeskyGrad<V = Var> {
    pub out: V,
    pub dout: V,
    #[output(like = out)]
    pub dx: V,
    pub upper: bool,
}
impl Composition for CholeskyGrad<Expr> {
    fn compose(&mut self) {
        let lower = |x: &Expr| if self.upper { transposed(x) } else { x.clone() };
        let (factor, dfactor) = (lower(&self.out), lower(&self.dout));
        let full = product([&factor, &dfactor], [true, false]);
        let half = (triangle(&full, true, 0) + triangle(&full, true, -1)) * 0.5;
        let solved = |y: &Expr| solve(&factor, y, false, true);
        let s = solved(&transposed(&solved(&half)));
        self.dx = (&s + &transposed(&s)) * 0.5;
    }
}

/// The solution of equations with a triangular matrix.
fn solve(x: &Expr, y: &Expr, upper: bool, transpose: bool) -> Expr {
    let (x, y) = (x.into(), y.into());
    emit(TriangularSolve { x, y, out: New, upper, transpose, unitriangular: false }).out
}

/// Solutions of equations whose matrices are given by factors of Cholesky: `y · yᵀ · out = x`, or `yᵀ · y · out = x` if
/// `upper`.
#[register_op(grad = Composed, composed)]
pub struct CholeskySolve<V = Var> {
    /// Right-hand sides, `[.., n, m]`.
    #[input]
    pub x: V,
    /// Triangular factors, `[.., n, n]`; elements of the other triangle are ignored.
    #[input]
    pub y: V,
    /// Same shape as `x`.
    #[output]
    pub out: V,
    /// Whether the factors are upper triangular.
    #[attr(default = false)]
    pub upper: bool,
}
impl Infer for CholeskySolve<Meta> {
    fn infer(&mut self) -> Result<()> {
        solution(&self.y, &self.x, &mut self.out)
    }
}
impl Composition for CholeskySolve<Expr> {
    fn compose(&mut self) {
        let half = solve(&self.y, &self.x, self.upper, self.upper);
        self.out = solve(&self.y, &half, self.upper, !self.upper);
    }
}
autobwd::samples!(
    CholeskySolve,
    [
        cholesky_solve(uniform([2, 3, 4]), given([2, 3, 3], DEFINITE), false),
        cholesky_solve(uniform([2, 3, 4]), given([2, 3, 3], DEFINITE), true),
        cholesky_solve(uniform([1, 3]), positive([1, 1]), true),
        cholesky_solve(uniform([0, 2, 3]), uniform([0, 2, 2]), false),
        cholesky_solve(uniform([3, 2]), uniform([2, 2]), false)
            .fails("`X`: matrices with the dimensions of [2, 2], except for the last one, are needed"),
        cholesky_solve(uniform([2, 2]), uniform([2, 3]), false).fails("`Y`: square matrices are needed"),
        cholesky_solve(integers_below(9, [2, 2]), uniform([2, 2]), false)
            .fails("`X`: dtype int64 does not match"),
        cholesky_solve(uniform([2, 2]), integers_below(9, [2, 2]), false)
            .fails("`Y`: floating point numbers are needed"),
    ]
);

fn cholesky_solve(x: Draw, y: Draw, upper: bool) -> CholeskySolve<Draw> {
    CholeskySolve { x, y, out: out(), upper }
}
