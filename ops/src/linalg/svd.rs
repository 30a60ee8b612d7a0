//! Singular values and vectors of matrices.

use autobwd::{
    Buf, Composed, Composition, Cx, Dims, Error, Expr, Infer, Kernel, Meta, Result, Var, check::*,
    op::with_float, register_op, tensor::Dim,
};

use super::{inverse::MATRICES, transposed};
use crate::{
    Math,
    kernel_helpers::{KernelFloat, wide},
    math::like,
    matmul::product,
};

/// Singular values and vectors of matrices, `x = u · s · vh`, with `s` on a diagonal, by one-sided Jacobi rotations (Hestenes, 1958).
///
/// The element of each column of `u` with the largest size is positive. Singular vectors of equal singular values have no
/// gradient, and gradients are infinite or NaN where a singular value is 0.
#[register_op(grad = SvdGrad, infallible, primitive)]
pub struct Svd<V = Var> {
    /// Matrices, `[.., m, n]`.
    #[input]
    pub x: V,
    /// Left singular vectors as columns, `[.., m, k]` with `k = min(m, n)`.
    #[output]
    pub u: V,
    /// Singular values in descending order, `[.., k]`.
    #[output]
    pub s: V,
    /// Right singular vectors as rows, `[.., k, n]`.
    #[output("VH")]
    pub vh: V,
    /// Whether all `m` left and `n` right vectors are needed: only for square matrices, where there are as many.
    #[attr(default = false)]
    pub full_matrices: bool,
}
impl Infer for Svd<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.x.float()?;
        self.x.require(self.x.rank() > 1, || "matrices are needed".into())?;
        let rows = self.x.rank() - 2;
        let (m, n) = (self.x.dims[rows], self.x.dims[rows + 1]);
        if self.full_matrices && !m.agrees(n) {
            return Err(Error::attr("full_matrices", format!("square matrices are needed, not [{m}, {n}]")));
        }
        let k = m.get().zip(n.get()).map_or(Dim::UNKNOWN, |(m, n)| m.min(n).into());
        let batch = || self.x.dims.iter().take(rows).copied();
        let dims = [vec![m, k], vec![k], vec![k, n]].map(|dims| batch().chain(dims).collect::<Dims>());
        let dtype = self.x.dtype;
        let [u, s, vh] = dims;
        self.u.set(dtype, u);
        self.s.set(dtype, s);
        self.vh.set(dtype, vh);
        Ok(())
    }

    fn flops(&self) -> Dim {
        Dim::from(64) * self.x.dims.numel() * self.x.dims[self.x.rank() - 1]
    }
}
impl Svd<Buf<'_>> {
    /// Rows and columns.
    fn sizes(&self) -> (usize, usize) {
        let dims = self.x.dims();
        (dims[dims.len() - 2], dims[dims.len() - 1])
    }
}
impl Kernel for Svd<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let (m, n) = self.sizes();
        let (k, l) = (m.min(n), m.max(n));
        with_float!(self.x, T => cx.scratch::<f64, _>(k * l + k * k, |scratch| {
            // Rows of the shorter side, which become orthogonal, and the rotations.
            let (rows, turns) = scratch.split_at_mut(k * l);
            let (u, s) = (self.u.slice_mut::<T>()?, self.s.slice_mut::<T>()?);
            let vh = self.vh.slice_mut::<T>()?;
            for (i, x) in self.x.slice::<T>()?.chunks_exact((m * n).max(1)).enumerate() {
                let is_wide = n > m;
                for row in 0..k {
                    for column in 0..l {
                        rows[row * l + column] = wide(if is_wide { x[row * n + column] } else { x[column * n + row] });
                    }
                }
                turns.iter_mut().enumerate().for_each(|(at, x)| *x = f64::from(u8::from(at / k == at % k)));
                orthogonalise(rows, turns, k, l);
                let (u, s, vh) = (&mut u[i * m * k..][..m * k], &mut s[i * k..][..k], &mut vh[i * k * n..][..k * n]);
                for place in 0..k {
                    let from = at_place(rows, l, place);
                    let size = norm(&rows[from * l..][..l]);
                    s[place] = T::of(size);
                    let long = |at: usize| if size == 0.0 { 0.0 } else { rows[from * l + at] / size };
                    let short = |at: usize| turns[from * k + at];
                    let left = |at: usize| if is_wide { short(at) } else { long(at) };
                    let largest = (0..m).map(left).fold(0.0, |best: f64, x| if x.abs() > best.abs() { x } else { best });
                    let sign = if largest < 0.0 { -1.0 } else { 1.0 };
                    for row in 0..m {
                        u[row * k + place] = T::of(sign * left(row));
                    }
                    for column in 0..n {
                        let right = if is_wide { long(column) } else { short(column) };
                        vh[place * n + column] = T::of(sign * right);
                    }
                }
            }
            Ok(())
        }))
    }

    fn scratch_bytes(&self, _: usize) -> usize {
        let (m, n) = self.sizes();
        m.min(n).saturating_mul(m.saturating_add(n)).saturating_mul(size_of::<f64>())
    }
}
autobwd::samples!(
    Svd,
    [
        svd(given([2, 3, 3], MATRICES), false),
        svd(given([2, 2], [2.0, 0.5, 0.25, -3.0]), true),
        svd(given([3, 2], [2.0, 0.5, 0.25, -3.0, 0.5, 0.75]), false),
        svd(given([2, 4], [2.0, 0.5, -0.25, 1.5, 0.25, -3.0, 0.75, 0.5]), false),
        svd(positive([2, 1, 1]), false),
        svd(uniform([0, 2, 3]), false),
        svd(uniform([2, 3, 0]), false),
        svd(uniform([2, 3]), true).fails("attribute `full_matrices`: square matrices are needed, not [2, 3]"),
        svd(uniform([3]), false).fails("`X`: matrices are needed"),
        svd(integers_below(9, [2, 2]), false).fails("`X`: floating point numbers are needed"),
    ]
);

fn svd(x: Draw, full_matrices: bool) -> Svd<Draw> {
    Svd { x, u: out(), s: out(), vh: out(), full_matrices }
}

/// The length of a vector.
fn norm(x: &[f64]) -> f64 {
    dot(x, x).sqrt()
}

fn dot(x: &[f64], y: &[f64]) -> f64 {
    x.iter().zip(y).fold(0.0, |sum, (x, y)| sum + x * y)
}

/// The row with that place in descending order of lengths; equal ones keep their order.
fn at_place(rows: &[f64], l: usize, place: usize) -> usize {
    let length = |i: usize| norm(&rows[i * l..][..l]);
    let count = rows.len() / l;
    let rank = |i: usize| {
        (0..count).filter(|j| length(*j) > length(i) || (length(*j) == length(i) && *j < i)).count()
    };
    (0..count).find(|i| rank(*i) == place).unwrap_or(place)
}

/// The largest number of sweeps; convergence is quadratic, and needs fewer than ten for common matrices.
const SWEEPS: usize = 40;

/// Rotates pairs of the `k` rows until all are orthogonal, and the rows of `turns` with them.
fn orthogonalise(rows: &mut [f64], turns: &mut [f64], k: usize, l: usize) {
    for _ in 0..SWEEPS {
        let mut is_done = true;
        for p in 0..k {
            for q in p + 1..k {
                let (x, y) = (&rows[p * l..][..l], &rows[q * l..][..l]);
                let (a, b, c) = (dot(x, x), dot(y, y), dot(x, y));
                // NaN ends the sweeps.
                if c.is_nan() || c.abs() <= f64::EPSILON * (a * b).sqrt() {
                    continue;
                }
                is_done = false;
                let ratio = (b - a) / (2.0 * c);
                let tangent = 1.0_f64.copysign(ratio) / (ratio.abs() + (1.0 + ratio * ratio).sqrt());
                let cosine = 1.0 / (1.0 + tangent * tangent).sqrt();
                turn(rows, l, (p, q), cosine, cosine * tangent);
                turn(turns, k, (p, q), cosine, cosine * tangent);
            }
        }
        if is_done {
            return;
        }
    }
}

/// Rotates a pair of rows.
fn turn(rows: &mut [f64], width: usize, (p, q): (usize, usize), cosine: f64, sine: f64) {
    for column in 0..width {
        let (x, y) = (rows[p * width + column], rows[q * width + column]);
        rows[p * width + column] = cosine * x - sine * y;
        rows[q * width + column] = sine * x + cosine * y;
    }
}

/// `dx = u · (ds + (a / e) · s + s · (b / e)) · vh + (1 - u · uᵀ) · du · s⁻¹ · vh + u · s⁻¹ · dvh · (1 - v · vh)`, with
/// `a = uᵀ · du - duᵀ · u`, `b = vh · dv - dvh · v`, `e[i, j] = s[j]² - s[i]²` (Townsend, 2016); `s` and `ds` are
/// diagonal matrices, and quotients are 0 for equal singular values.
#[register_op(grad_of = Svd, grad = Composed, composed)]
pub struct SvdGrad<V = Var> {
    #[input(shape_only)]
    pub x: V,
    pub u: V,
    pub s: V,
    pub vh: V,
    pub du: Option<V>,
    pub ds: Option<V>,
    pub dvh: Option<V>,
    #[output(like = x)]
    pub dx: V,
}
impl Composition for SvdGrad<Expr> {
    fn compose(&mut self) {
        let (u, s, vh) = (&self.u, &self.s, &self.vh);
        let (columns, rows) = (s.unsqueeze(&[-2]), s.unsqueeze(&[-1]));
        let gaps = columns.square() - rows.square();
        let is_equal = gaps.equal(&like(&gaps, 0.0));
        let inverse = is_equal.where_cond(&like(&gaps, 1.0), &gaps).reciprocal();
        let inverse = is_equal.where_cond(&like(&gaps, 0.0), &inverse);
        let skew = |x: Expr| (&x - &transposed(&x)) * &inverse;
        let mut terms = vec![];
        if let Some(ds) = &self.ds {
            terms.push(product([&(u * ds.unsqueeze(&[-2])), vh], [false; 2]));
        }
        if let Some(du) = &self.du {
            let inner = product([u, du], [true, false]);
            let within = product([u, &(skew(inner.clone()) * &columns)], [false; 2]);
            let beyond = (du - &product([u, &inner], [false; 2])) / &columns;
            terms.push(product([&(within + beyond), vh], [false; 2]));
        }
        if let Some(dvh) = &self.dvh {
            let inner = product([vh, dvh], [false, true]);
            let within = product([&(skew(inner.clone()) * &rows), vh], [false; 2]);
            let beyond = (dvh - &product([&inner, vh], [true, false])) / &rows;
            terms.push(product([u, &(within + beyond)], [false; 2]));
        }
        let sum = terms.into_iter().reduce(|sum, term| sum + term);
        self.dx = sum.unwrap_or_else(|| like(&self.x, 0.0));
    }
}
