//! The factorisation of matrices into triangular ones.

use autobwd::{
    Buf, Composed, Composition, Cx, DType, Dims, Error, ErrorKind, Expr, Infer, Kernel, Meta, New, Result,
    Var,
    check::*,
    emit,
    op::with_float,
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

/// Factors of matrices, `x = p · l · u`, by Gaussian elimination: `l` is lower triangular with a diagonal of 1, `u` upper triangular, and `p` a
/// permutation of rows (Golub and Van Loan, 2013, section 3.4).
///
/// Gradients are infinite or NaN where `u` has a 0 on its diagonal.
#[register_op(grad = LuGrad, infallible, primitive)]
pub struct Lu<V = Var> {
    /// Matrices, `[.., m, n]`.
    #[input]
    pub x: V,
    /// `u`, and below its diagonal the elements of `l`; same shape as `x`.
    #[output]
    pub out: V,
    /// Row `i` changed places with row `pivots[i] - 1`, for each in order; int32, `[.., k]` with `k = min(m, n)`.
    #[output]
    pub pivots: V,
    /// The first place, from 1 on, at which the diagonal of `u` has a 0, or else 0; int32, `[..]`.
    #[output]
    pub infos: V,
    /// Whether rows change places, so that each pivot is the largest of its column.
    #[attr("pivots", default = true)]
    pub is_pivoted: bool,
}
impl Infer for Lu<Meta> {
    fn infer(&mut self) -> Result<()> {
        let [m, n] = rows_columns(&self.x)?;
        let batch = || self.x.dims.iter().take(self.x.rank() - 2).copied();
        self.pivots.set(DType::I32, batch().chain([shorter(m, n)]).collect::<Dims>());
        self.infos.set(DType::I32, batch().collect::<Dims>());
        self.out.like(&self.x);
        Ok(())
    }

    fn flops(&self) -> Dim {
        Dim::from(2) * self.x.dims.numel() * self.x.dims[self.x.rank() - 1]
    }
}
impl Kernel for Lu<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let dims = self.x.dims();
        let (m, n) = (dims[dims.len() - 2], dims[dims.len() - 1]);
        let k = m.min(n);
        let (pivots, infos) = (self.pivots.slice_mut::<i32>()?, self.infos.slice_mut::<i32>()?);
        with_float!(self.x, T => cx.scratch::<f64, _>(m * n, |matrix| {
            let (x, out) = (self.x.slice::<T>()?, self.out.slice_mut::<T>()?);
            for (i, info) in infos.iter_mut().enumerate() {
                let pivots = &mut pivots[i * k..][..k];
                let elements = i * m * n..(i + 1) * m * n;
                matrix.iter_mut().zip(&x[elements.clone()]).for_each(|(to, x)| *to = wide(*x));
                *info = factorise(matrix, [m, n], self.is_pivoted, pivots);
                out[elements].iter_mut().zip(&*matrix).for_each(|(out, x)| *out = T::of(*x));
            }
            Ok(())
        }))
    }

    fn scratch_bytes(&self, _: usize) -> usize {
        let dims = self.x.dims();
        dims[dims.len() - 2].saturating_mul(dims[dims.len() - 1]).saturating_mul(size_of::<f64>())
    }
}
autobwd::samples!(
    Lu,
    [
        lu(given([2, 3, 3], MATRICES), true),
        lu(given([2, 2], [0.75, 2.0, -3.0, 0.5]), true),
        lu(given([2, 2], [0.5, 2.0, -3.0, 0.5]), false),
        lu(
            given(
                [3, 3, 2],
                [
                    2.0, 0.5, 0.25, -3.0, 4.5, 0.75, 0.5, 3.0, -2.0, 0.25, 1.0, 4.0, 3.5, -0.5, 1.5, 2.0,
                    -0.25, 5.0,
                ],
            ),
            true,
        ),
        lu(given([2, 4], [2.0, 0.5, -0.25, 1.5, 4.25, -3.0, 0.75, 0.5]), true),
        lu(given([2, 2], [1.0, 2.0, 2.0, 4.0]), true).not_a_derivative("a singular matrix has no gradient"),
        lu(given([2, 1, 1], [0.75, -2.0]), false),
        lu(given([0, 2, 3], []), true),
        lu(given([2, 3, 0], []), true),
        lu(uniform([3]), true).fails("`X`: matrices are needed"),
        lu(integers_below(9, [2, 2]), true).fails("`X`: floating point numbers are needed"),
    ]
);

fn lu(x: Draw, is_pivoted: bool) -> Lu<Draw> {
    Lu { x, out: out(), pivots: out(), infos: out(), is_pivoted }
}

fn rows_columns(x: &Meta) -> Result<[Dim; 2]> {
    x.float()?;
    x.require(x.rank() > 1, || "matrices are needed".into())?;
    Ok([x.dims[x.rank() - 2], x.dims[x.rank() - 1]])
}

/// The smaller of two dimensions, if both are known.
fn shorter(m: Dim, n: Dim) -> Dim {
    m.get().zip(n.get()).map_or(Dim::UNKNOWN, |(m, n)| m.min(n).into())
}

/// Factorises a matrix in its place; returns the first place of a pivot of 0, from 1 on, or else 0.
fn factorise(matrix: &mut [f64], [m, n]: [usize; 2], is_pivoted: bool, pivots: &mut [i32]) -> i32 {
    let mut info = 0;
    for (k, place) in pivots.iter_mut().enumerate() {
        let size = |row: &usize| matrix[row * n + k].abs();
        let later = if is_pivoted { k + 1..m } else { 0..0 };
        let pivot = later.fold(k, |best, row| if size(&row) > size(&best) { row } else { best });
        *place = pivot as i32 + 1;
        (0..n).for_each(|column| matrix.swap(pivot * n + column, k * n + column));
        let divisor = matrix[k * n + k];
        if divisor == 0.0 {
            info = if info == 0 { k as i32 + 1 } else { info };
            continue;
        }
        for row in k + 1..m {
            let factor = matrix[row * n + k] / divisor;
            matrix[row * n + k] = factor;
            for column in k + 1..n {
                matrix[row * n + column] -= factor * matrix[k * n + column];
            }
        }
    }
    info
}

/// For `l = [l₁; l₂]` and `u = [u₁, u₂]` with square `l₁` and `u₁`: the first `k` rows and columns of `pᵀ · dx` are `l₁⁻ᵀ · s · u₁⁻ᵀ`, the rows below
/// `dl₂ · u₁⁻ᵀ`, the columns after `l₁⁻ᵀ · du₂`; `s` has the strictly lower triangle of `l₁ᵀ · dl₁ - du₂ · u₂ᵀ` and the upper one of
/// `du₁ · u₁ᵀ - l₂ᵀ · dl₂`.
///
/// It takes the memory of a permutation matrix, `[.., m, m]`.
#[register_op(grad_of = Lu, grad = Composed, composed)]
pub struct LuGrad<V = Var> {
    #[input(shape_only)]
    pub x: V,
    pub out: V,
    pub pivots: V,
    pub dout: V,
    #[output(like = x)]
    pub dx: V,
}
impl Composition for LuGrad<Expr> {
    fn compose(&mut self) {
        let rank = self.out.dims().len() as i32;
        let (rows, columns) = (rank - 2, rank - 1);
        let k = self.out.dim(rows).min(self.out.dim(columns));
        let first = |x: &Expr, axis: i32| x.slice_to(axis, &0.into(), &k);
        let rest = |x: &Expr, axis: i32| x.slice_to(axis, &k, &x.dim(axis));
        let both = |x: &Expr| first(&first(x, rows), columns);
        let (lu, dlu) = (both(&self.out), both(&self.dout));
        let (l2, dl2) = (rest(&first(&self.out, columns), rows), rest(&first(&self.dout, columns), rows));
        let (u2, du2) = (rest(&first(&self.out, rows), columns), rest(&first(&self.dout, rows), columns));
        let identity = triangle(&triangle(&like(&lu, 1.0), true, 0), false, 0);
        let (l1, u1) = (triangle(&lu, true, -1) + identity, triangle(&lu, false, 0));
        let (dl1, du1) = (triangle(&dlu, true, -1), triangle(&dlu, false, 0));
        let lower = product([&l1, &dl1], [true, false]) - product([&du2, &u2], [false, true]);
        let upper = product([&du1, &u1], [false, true]) - product([&l2, &dl2], [true, false]);
        let s = triangle(&lower, true, -1) + triangle(&upper, false, 0);
        // From the left by `l₁⁻ᵀ`, and from the right by `u₁⁻ᵀ`.
        let by_lower = |y: &Expr| {
            let (x, y, upper, transpose, unitriangular) = ((&l1).into(), y.into(), false, true, true);
            emit(TriangularSolve { x, y, out: New, upper, transpose, unitriangular }).out
        };
        let by_upper = |y: &Expr| {
            let (x, y) = ((&u1).into(), (&transposed(y)).into());
            let (upper, transpose, unitriangular) = (true, false, false);
            transposed(&emit(TriangularSolve { x, y, out: New, upper, transpose, unitriangular }).out)
        };
        let above = concat(&[&by_lower(&by_upper(&s)), &by_lower(&du2)], columns);
        // Without rows below, there are columns after, which those lack.
        let missing = self.out.dim(columns) - &k;
        let paddings: Vec<[DimExpr; 2]> = (0..rank)
            .map(|axis| [0.into(), if axis == columns { missing.clone() } else { 0.into() }])
            .collect();
        let below = by_upper(&dl2).pad_to(&paddings, 0.0);
        let permuted = concat(&[&above, &below], rows);
        let (x, pivots) = ((&self.out).into(), (&self.pivots).into());
        let (unpack_ludata, unpack_pivots) = (false, true);
        let op = LuUnpack { x, pivots, pmat: Some(New), l: None, u: None, unpack_ludata, unpack_pivots };
        let pmat = emit(op).pmat;
        self.dx = pmat.map_or(permuted.clone(), |pmat| product([&pmat, &permuted], [false; 2]));
    }
}

/// The factors of `lu` as matrices of their own.
///
/// The permutation has no gradient.
#[register_op(grad = LuUnpackGrad, primitive)]
pub struct LuUnpack<V = Var> {
    /// Output `out` of [`Lu`], `[.., m, n]`.
    #[input]
    pub x: V,
    /// Output `pivots` of [`Lu`], int32, `[.., k]` with `k = min(m, n)`.
    #[input]
    pub pivots: V,
    /// The permutation of rows, `[.., m, m]`.
    #[output]
    pub pmat: Option<V>,
    /// Lower triangular with a diagonal of 1, `[.., m, k]`.
    #[output]
    pub l: Option<V>,
    /// Upper triangular, `[.., k, n]`.
    #[output]
    pub u: Option<V>,
    /// Whether `l` and `u` may be needed.
    #[attr(default = true)]
    pub unpack_ludata: bool,
    /// Whether `pmat` may be needed.
    #[attr(default = true)]
    pub unpack_pivots: bool,
}
impl Infer for LuUnpack<Meta> {
    fn infer(&mut self) -> Result<()> {
        let [m, n] = rows_columns(&self.x)?;
        let k = shorter(m, n);
        let batch = || self.x.dims.iter().take(self.x.rank() - 2).copied();
        self.pivots.require(self.pivots.dtype == DType::I32, || "int32 is needed".into())?;
        let places = batch().chain([k]).collect::<Dims>();
        self.pivots
            .require(self.pivots.dims.agrees(&places), || format!("dimensions {places} are needed"))?;
        let (has_factors, has_permutation) = (self.l.is_some() || self.u.is_some(), self.pmat.is_some());
        for (name, is_needed, may_be) in [
            ("unpack_ludata", has_factors, self.unpack_ludata),
            ("unpack_pivots", has_permutation, self.unpack_pivots),
        ] {
            if is_needed && !may_be {
                return Err(Error::new(ErrorKind::Attr, format!("attribute `{name}`: an output needs it")));
            }
        }
        let outputs = [(self.pmat.as_mut(), [m, m]), (self.l.as_mut(), [m, k]), (self.u.as_mut(), [k, n])];
        for (out, dims) in outputs {
            let Some(out) = out else { continue };
            out.set(self.x.dtype, batch().chain(dims).collect::<Dims>());
        }
        Ok(())
    }
}
impl Kernel for LuUnpack<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let dims = self.x.dims();
        let (m, n) = (dims[dims.len() - 2], dims[dims.len() - 1]);
        let k = m.min(n);
        let pivots = self.pivots.slice::<i32>()?;
        with_float!(self.x, T => {
            let x = self.x.slice::<T>()?;
            if let Some(l) = self.l.slice_mut::<T>()? {
                for (i, l) in l.iter_mut().enumerate() {
                    let (matrix, row, column) = (i / (m * k), i / k % m, i % k);
                    *l = match row.cmp(&column) {
                        std::cmp::Ordering::Less => 0.0,
                        std::cmp::Ordering::Equal => 1.0,
                        std::cmp::Ordering::Greater => x[(matrix * m + row) * n + column],
                    };
                }
            }
            if let Some(u) = self.u.slice_mut::<T>()? {
                for (i, u) in u.iter_mut().enumerate() {
                    let (matrix, row, column) = (i / (k * n), i / n % k, i % n);
                    *u = if row > column { 0.0 } else { x[(matrix * m + row) * n + column] };
                }
            }
            let Some(pmat) = self.pmat.slice_mut::<T>()? else { return Ok(()) };
            pmat.fill(0.0);
            cx.scratch(m, |rows: &mut [i64]| {
                for (i, pmat) in pmat.chunks_exact_mut((m * m).max(1)).enumerate() {
                    rows.iter_mut().zip(0..).for_each(|(row, place)| *row = place);
                    for (place, pivot) in pivots[i * k..][..k].iter().enumerate() {
                        let other = usize::try_from(i64::from(*pivot) - 1).ok().filter(|other| *other < m);
                        let other = other.ok_or_else(|| {
                            Error::data(format!("`Pivots`: {pivot} is not within 1..{}", m + 1))
                        })?;
                        rows.swap(place, other);
                    }
                    rows.iter().enumerate().for_each(|(place, row)| pmat[*row as usize * m + place] = 1.0);
                }
                Ok(())
            })
        })
    }

    fn scratch_bytes(&self, _: usize) -> usize {
        let dims = self.x.dims();
        let rows = if self.pmat.is_some() { dims[dims.len() - 2] } else { 0 };
        rows.saturating_mul(size_of::<i64>())
    }
}
autobwd::samples!(
    LuUnpack,
    [
        lu_unpack(uniform([3, 3]), given([3], [2.0, 3.0, 3.0])),
        lu_unpack(uniform([4, 4, 2]), given([4, 2], [4.0, 2.0, 1.0, 3.0, 2.0, 2.0, 3.0, 4.0])),
        lu_unpack(uniform([2, 5]), given([2], [1.0, 2.0])),
        LuUnpack {
            l: None,
            u: None,
            unpack_ludata: false,
            ..lu_unpack(uniform([2, 2]), given([2], [2.0, 2.0]))
        },
        LuUnpack { pmat: None, unpack_pivots: false, ..lu_unpack(uniform([2, 3]), given([2], [2.0, 2.0])) },
        lu_unpack(uniform([0, 2, 3]), given([0, 2], [])),
        lu_unpack(uniform([3, 0]), given([0], [])),
        lu_unpack(uniform([2, 2]), given([2], [3.0, 2.0])).fails("`Pivots`: 3 is not within 1..3"),
        lu_unpack(uniform([2, 2]), given([3], [1.0, 2.0, 2.0])).fails("`Pivots`: dimensions [2] are needed"),
        LuUnpack { pivots: integers(&[1, 2]), ..lu_unpack(uniform([2, 2]), given([2], [])) }
            .fails("`Pivots`: int32 is needed"),
        lu_unpack(uniform([2]), given([2], [1.0, 2.0])).fails("`X`: matrices are needed"),
        lu_unpack(integers_below(2, [2, 2]), given([2], [1.0, 2.0]))
            .fails("`X`: floating point numbers are needed"),
        LuUnpack { unpack_ludata: false, ..lu_unpack(uniform([2, 2]), given([2], [1.0, 2.0])) }
            .fails("attribute `unpack_ludata`: an output needs it"),
        LuUnpack { unpack_pivots: false, ..lu_unpack(uniform([2, 2]), given([2], [1.0, 2.0])) }
            .fails("attribute `unpack_pivots`: an output needs it"),
    ]
);

fn lu_unpack(x: Draw, pivots: Draw) -> LuUnpack<Draw> {
    let [pmat, l, u] = [(); 3].map(|()| Some(out()));
    LuUnpack { x, pivots: pivots.of(DType::I32), pmat, l, u, unpack_ludata: true, unpack_pivots: true }
}

/// `dx` has the strictly lower triangle of `dl` and the upper one of `du`.
#[register_op(grad_of = LuUnpack, grad = Composed, composed)]
pub struct LuUnpackGrad<V = Var> {
    #[input(shape_only)]
    pub x: V,
    #[input(shape_only)]
    pub pivots: V,
    pub dl: Option<V>,
    pub du: Option<V>,
    #[output(like = x)]
    pub dx: V,
}
impl Composition for LuUnpackGrad<Expr> {
    fn compose(&mut self) {
        let rank = self.x.dims().len() as i32;
        let padded = |part: &Expr| {
            let missing = |axis| [0.into(), self.x.dim(axis) - part.dim(axis)];
            let paddings =
                (0..rank).map(|axis| if axis < rank - 2 { [0.into(), 0.into()] } else { missing(axis) });
            part.pad_to(&paddings.collect::<Vec<[DimExpr; 2]>>(), 0.0)
        };
        let lower = self.dl.as_ref().map(|dl| padded(&triangle(dl, true, -1)));
        let upper = self.du.as_ref().map(|du| padded(&triangle(du, false, 0)));
        let sum = [lower, upper].into_iter().flatten().reduce(|sum, term| sum + term);
        self.dx = sum.unwrap_or_else(|| like(&self.x, 0.0));
    }
}
