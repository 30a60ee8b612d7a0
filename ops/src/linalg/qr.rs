//! The factorisation of matrices into an orthogonal and a triangular one.

use autobwd::{
    Buf, Composed, Composition, Cx, Dims, Error, Expr, Infer, Kernel, Meta, New, Result, Var,
    check::*,
    emit,
    op::{attr_enum, with_float},
    register_op,
    tensor::{Dim, OptionalBuf},
};

use super::{TriangularSolve, inverse::MATRICES, transposed, triangle};
use crate::{
    DimExpr, Math, concat,
    kernel_helpers::{KernelFloat, wide},
    math::like,
    matmul::product,
};

attr_enum! {
    /// The factors that `qr` computes.
    pub enum QrMode {
        /// `min(m, n)` columns of `q` and rows of `r`.
        Reduced = "reduced",
        /// `m` columns of `q` and rows of `r`.
        Complete = "complete",
        /// As reduced, where only `r` is needed.
        R = "r",
    }
}

/// Factors of matrices, `x = q · r`, with orthonormal columns of `q` and upper triangular `r`, by Householder reflections
/// (Golub and Van Loan, 2013, section 5.2), with the signs of LAPACK.
///
/// Gradients are infinite or NaN where the first columns of `x` are linearly dependent.
#[register_op(grad = QrGrad, infallible, primitive)]
pub struct Qr<V = Var> {
    /// Matrices, `[.., m, n]`.
    #[input]
    pub x: V,
    /// `[.., m, k]` with `k = min(m, n)`, if it is needed.
    #[output]
    pub q: Option<V>,
    /// `[.., k, n]`
    #[output]
    pub r: V,
    /// The factors that are computed. Mode `complete` needs at least as many columns as rows, so that there is a
    /// gradient.
    #[attr(default = QrMode::Reduced)]
    pub mode: QrMode,
}
impl Infer for Qr<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.x.float()?;
        self.x.require(self.x.rank() > 1, || "matrices are needed".into())?;
        let rows = self.x.rank() - 2;
        let (m, n) = (self.x.dims[rows], self.x.dims[rows + 1]);
        let least = m.get().zip(n.get()).map(|(m, n)| m.min(n));
        if self.mode == QrMode::Complete && m.get().zip(n.get()).is_some_and(|(m, n)| m > n) {
            let text = format!("`complete` needs at least as many columns as rows, not [{m}, {n}]");
            return Err(Error::attr("mode", text));
        }
        let of = |rows: Dim, columns: Dim| {
            let batch = self.x.dims.iter().take(self.x.rank() - 2).copied();
            batch.chain([rows, columns]).collect::<Dims>()
        };
        let k = least.map_or(Dim::UNKNOWN, Dim::from);
        self.r.set(self.x.dtype, of(k, n));
        if let Some(q) = &mut self.q {
            q.set(self.x.dtype, of(m, k));
        }
        Ok(())
    }

    fn flops(&self) -> Dim {
        Dim::from(8) * self.x.dims.numel() * self.x.dims[self.x.rank() - 1]
    }
}
impl Qr<Buf<'_>> {
    /// Rows, columns, and the smaller of both.
    fn sizes(&self) -> (usize, usize, usize) {
        let dims = self.x.dims();
        let (m, n) = (dims[dims.len() - 2], dims[dims.len() - 1]);
        (m, n, m.min(n))
    }
}
impl Kernel for Qr<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let (m, n, k) = self.sizes();
        with_float!(self.x, T => cx.scratch::<f64, _>(m * n + m * k + k, |scratch| {
            let (matrix, rest) = scratch.split_at_mut(m * n);
            let (q, factors) = rest.split_at_mut(m * k);
            let (x, r, mut out) = (self.x.slice::<T>()?, self.r.slice_mut::<T>()?, self.q.slice_mut::<T>()?);
            let all = x.chunks_exact((m * n).max(1)).zip(r.chunks_exact_mut((k * n).max(1)));
            for (i, (x, r)) in all.enumerate() {
                matrix.iter_mut().zip(x).for_each(|(to, from)| *to = wide(*from));
                for (j, factor) in factors.iter_mut().enumerate() {
                    *factor = reflect(matrix, (m, n), j);
                }
                for (at, r) in r.iter_mut().enumerate() {
                    *r = if at % n < at / n { T::of(0.0) } else { T::of(matrix[at]) };
                }
                let Some(out) = &mut out else { continue };
                q.iter_mut().enumerate().for_each(|(at, q)| *q = f64::from(u8::from(at / k == at % k)));
                for (j, factor) in factors.iter().enumerate().rev() {
                    apply(matrix, n, j, *factor, q, k);
                }
                out[i * m * k..][..m * k].iter_mut().zip(&*q).for_each(|(to, from)| *to = T::of(*from));
            }
            Ok(())
        }))
    }

    fn scratch_bytes(&self, _: usize) -> usize {
        let (m, n, k) = self.sizes();
        let factors = m.saturating_mul(n.saturating_add(k)).saturating_add(k);
        factors.saturating_mul(size_of::<f64>())
    }
}
autobwd::samples!(
    Qr,
    [
        qr(given([2, 3, 3], MATRICES), QrMode::Reduced),
        qr(given([3, 2], [2.0, 0.5, 0.25, -3.0, 0.5, 0.75]), QrMode::Reduced),
        qr(given([2, 4], [2.0, 0.5, -0.25, 1.5, 0.25, -3.0, 0.75, 0.5]), QrMode::Reduced),
        qr(given([2, 4], [2.0, 0.5, -0.25, 1.5, 0.25, -3.0, 0.75, 0.5]), QrMode::Complete),
        qr(given([3, 2], [2.0, 0.5, 0.25, -3.0, 0.5, 0.75]), QrMode::R),
        Qr { q: None, ..qr(given([2, 2], [2.0, 0.5, 0.25, -3.0]), QrMode::R) },
        qr(positive([2, 1, 1]), QrMode::Reduced),
        qr(uniform([0, 2, 2]), QrMode::Reduced),
        qr(uniform([2, 3, 0]), QrMode::Reduced),
        qr(uniform([3, 2]), QrMode::Complete)
            .fails("attribute `mode`: `complete` needs at least as many columns as rows, not [3, 2]"),
        qr(uniform([3]), QrMode::Reduced).fails("`X`: matrices are needed"),
        qr(integers_below(9, [2, 2]), QrMode::Reduced).fails("`X`: floating point numbers are needed"),
    ]
);

fn qr(x: Draw, mode: QrMode) -> Qr<Draw> {
    Qr { x, q: Some(out()), r: out(), mode }
}

/// Reflects column `j` onto its axis, and the columns after it. Leaves the vector of the reflection, whose first element
/// is 1, below the diagonal, and returns its factor.
fn reflect(matrix: &mut [f64], (m, n): (usize, usize), j: usize) -> f64 {
    let first = matrix[j * n + j];
    let tail = (j + 1..m).fold(0.0, |sum, i| sum + matrix[i * n + j] * matrix[i * n + j]);
    if tail == 0.0 {
        return 0.0;
    }
    let reflected = -(first * first + tail).sqrt().copysign(first);
    let factor = (reflected - first) / reflected;
    (j + 1..m).for_each(|i| matrix[i * n + j] /= first - reflected);
    for column in j + 1..n {
        let projection = (j + 1..m)
            .fold(matrix[j * n + column], |sum, i| sum + matrix[i * n + j] * matrix[i * n + column]);
        matrix[j * n + column] -= factor * projection;
        for i in j + 1..m {
            matrix[i * n + column] -= factor * projection * matrix[i * n + j];
        }
    }
    matrix[j * n + j] = reflected;
    factor
}

/// Applies reflection `j` of a matrix of `n` columns to the columns of `q`, `k` of them.
fn apply(matrix: &[f64], n: usize, j: usize, factor: f64, q: &mut [f64], k: usize) {
    let m = q.len() / k;
    for column in 0..k {
        let projection =
            (j + 1..m).fold(q[j * k + column], |sum, i| sum + matrix[i * n + j] * q[i * k + column]);
        q[j * k + column] -= factor * projection;
        for i in j + 1..m {
            q[i * k + column] -= factor * projection * matrix[i * n + j];
        }
    }
}

/// For `x = [a, b]`, `r = [u, v]` with square `u`: `da = (e + q · s) · u⁻ᵀ` and `db = q · dv`, with `e = dq + b · dvᵀ`, and
/// `s` symmetric with the lower triangle of `u · duᵀ - eᵀ · q` (Walter, Lehmann and Lamour, 2010).
#[register_op(grad_of = Qr, grad = Composed, composed)]
pub struct QrGrad<V = Var> {
    pub x: V,
    pub q: Option<V>,
    pub r: V,
    pub dq: Option<V>,
    pub dr: Option<V>,
    #[output(like = x)]
    pub dx: V,
}
impl Composition for QrGrad<Expr> {
    fn compose(&mut self) {
        let (x, mode) = (&self.x, QrMode::Reduced);
        let last = x.dims().len() as i32 - 1;
        let (k, n) = (self.r.dim(-2), self.r.dim(-1));
        let q = match &self.q {
            Some(q) => q.clone(),
            None => {
                let op = emit(Qr { x: x.into(), q: Some(New), r: New, mode });
                op.q.unwrap_or(op.r)
            }
        };
        let dr = self.dr.clone().unwrap_or_else(|| like(&self.r, 0.0));
        let left = |x: &Expr| x.slice_to(last, &DimExpr::from(0), &k);
        let right = |x: &Expr| x.slice_to(last, &k, &n);
        let (u, du, dv, b) = (left(&self.r), left(&dr), right(&dr), right(x));
        let of_v = product([&b, &dv], [false, true]);
        let e = match &self.dq {
            Some(dq) => dq + of_v,
            None => of_v,
        };
        let full = product([&u, &du], [false, true]) - product([&e, &q], [true, false]);
        let s = triangle(&full, true, 0) + transposed(&triangle(&full, true, -1));
        let (x, y) = ((&u).into(), transposed(&(e + product([&q, &s], [false; 2]))).into());
        let (upper, transpose, unitriangular) = (true, false, false);
        let da = emit(TriangularSolve { x, y, out: New, upper, transpose, unitriangular }).out;
        self.dx = concat(&[&transposed(&da), &product([&q, &dv], [false; 2])], last);
    }
}
