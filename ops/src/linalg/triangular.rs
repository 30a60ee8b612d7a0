//! Systems of linear equations with triangular matrices.

use autobwd::{
    Buf, Composed, Composition, Cx, Expr, Infer, Kernel, Meta, New, Result, Var, check::*, emit,
    op::with_float, register_op, tensor::Dim,
};

use super::{size, solution, triangle};
use crate::{
    kernel_helpers::{KernelFloat, wide},
    matmul::product,
};

/// Solutions of equations with triangular matrices: `x · out = y`, or `xᵀ · out = y` if `transpose`.
///
/// A 0 on the diagonal gives infinity or NaN, as in the reference.
#[register_op(grad = TriangularSolveGrad, infallible, primitive)]
pub struct TriangularSolve<V = Var> {
    /// Square matrices, `[.., n, n]`; elements of the other triangle are ignored.
    #[input]
    pub x: V,
    /// Right-hand sides, `[.., n, m]`.
    #[input]
    pub y: V,
    /// Same shape as `y`.
    #[output]
    pub out: V,
    /// Whether the matrices are upper triangular, or lower triangular.
    #[attr(default = true)]
    pub upper: bool,
    /// Solve the equations of the transposed matrices.
    #[attr(default = false)]
    pub transpose: bool,
    /// The diagonal counts as 1, and is ignored.
    #[attr(default = false)]
    pub unitriangular: bool,
}
impl Infer for TriangularSolve<Meta> {
    fn infer(&mut self) -> Result<()> {
        solution(&self.x, &self.y, &mut self.out)
    }

    fn flops(&self) -> Dim {
        Dim::from(2) * self.y.dims.numel() * self.x.dims[self.x.rank() - 1]
    }
}
impl Kernel for TriangularSolve<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        let (n, m) = (size(&self.x), size(&self.y));
        // A transposed upper triangular matrix is lower triangular.
        let (is_upper, transpose, is_unit) =
            (self.upper != self.transpose, self.transpose, self.unitriangular);
        with_float!(self.x, T => {
            let matrices = self.x.slice::<T>()?.chunks_exact((n * n).max(1));
            let sides = self.y.slice::<T>()?.chunks_exact((n * m).max(1));
            let outs = self.out.slice_mut::<T>()?.chunks_exact_mut((n * m).max(1));
            for ((x, y), out) in matrices.zip(sides).zip(outs) {
                let at = |row: usize, column: usize| {
                    wide(if transpose { x[column * n + row] } else { x[row * n + column] })
                };
                for i in 0..n {
                    let row = if is_upper { n - 1 - i } else { i };
                    let solved = if is_upper { row + 1..n } else { 0..row };
                    for column in 0..m {
                        let rest = solved.clone().fold(wide(y[row * m + column]), |rest, k| {
                            rest - at(row, k) * wide(out[k * m + column])
                        });
                        out[row * m + column] = T::of(if is_unit { rest } else { rest / at(row, row) });
                    }
                }
            }
            Ok(())
        })
    }
}
autobwd::samples!(
    TriangularSolve,
    [
        triangular_solve(triangles(), uniform([4, 3, 2]), true, false),
        triangular_solve(triangles(), uniform([4, 3, 2]), false, false),
        triangular_solve(triangles(), uniform([4, 3, 2]), true, true),
        triangular_solve(triangles(), uniform([4, 3, 2]), false, true),
        TriangularSolve {
            unitriangular: true,
            ..triangular_solve(triangles(), uniform([4, 3, 1]), true, false)
        },
        TriangularSolve {
            unitriangular: true,
            ..triangular_solve(triangles(), uniform([4, 3, 1]), false, true)
        },
        triangular_solve(positive([1, 1]), uniform([1, 3]), true, false),
        triangular_solve(uniform([0, 2, 2]), uniform([0, 2, 3]), true, false),
        triangular_solve(uniform([0, 0]), uniform([0, 3]), false, false),
        triangular_solve(uniform([2, 2]), uniform([3, 2]), true, false)
            .fails("`Y`: matrices with the dimensions of [2, 2], except for the last one, are needed"),
        triangular_solve(uniform([2, 2]), uniform([2]), true, false)
            .fails("`Y`: matrices with the dimensions of [2, 2], except for the last one, are needed"),
        triangular_solve(uniform([2, 3]), uniform([2, 2]), true, false)
            .fails("`X`: square matrices are needed"),
        triangular_solve(uniform([2, 2]), integers_below(9, [2, 2]), true, false)
            .fails("`Y`: dtype int64 does not match"),
        triangular_solve(integers_below(9, [2, 2]), integers_below(9, [2, 2]), true, false)
            .fails("`X`: floating point numbers are needed"),
    ]
);

/// Two matrices of 3 rows, both of whose triangles are well-conditioned.
const TRIANGLES: [f64; 18] = [
    2.0, 0.5, -0.25, 0.25, -3.0, 0.75, -0.5, 0.125, 2.5, //
    1.5, 0.25, -0.75, 0.5, 2.0, 0.25, 0.125, -0.75, -3.0,
];

/// Two matrices, twice: more matrices than rows, so that larger samples have more of them.
fn triangles() -> Draw {
    given([4, 3, 3], [TRIANGLES; 2].concat())
}

fn triangular_solve(x: Draw, y: Draw, upper: bool, transpose: bool) -> TriangularSolve<Draw> {
    TriangularSolve { x, y, out: out(), upper, transpose, unitriangular: false }
}

/// `dy` solves the equations of the matrices transposed once more, with `dout` on the right; `dx` is the triangle of
/// `-dy · outᵀ`, or of its transpose.
#[register_op(grad_of = TriangularSolve, grad = Composed, composed)]
pub struct TriangularSolveGrad<V = Var> {
    pub x: V,
    #[input(shape_only)]
    pub y: V,
    pub out: V,
    pub dout: V,
    #[output(like = x)]
    pub dx: Option<V>,
    #[output(like = y)]
    pub dy: Option<V>,
    pub upper: bool,
    pub transpose: bool,
    pub unitriangular: bool,
}
impl Composition for TriangularSolveGrad<Expr> {
    fn compose(&mut self) {
        let TriangularSolveGrad { upper, transpose, unitriangular, .. } = *self;
        let (x, y) = ((&self.x).into(), (&self.dout).into());
        let dy = emit(TriangularSolve { x, y, out: New, upper, transpose: !transpose, unitriangular }).out;
        let factors = if transpose { [&self.out, &dy] } else { [&dy, &self.out] };
        // The diagonal is constant if it counts as 1.
        let diagonal = match (unitriangular, upper) {
            (false, _) => 0,
            (true, true) => 1,
            (true, false) => -1,
        };
        self.dx = Some(-triangle(&product(factors, [false, true]), !upper, diagonal));
        self.dy = Some(dy);
    }
}
