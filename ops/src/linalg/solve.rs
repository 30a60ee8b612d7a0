//! Systems of linear equations.

use autobwd::{
    Buf, Composed, Composition, Cx, Expr, Infer, Kernel, Meta, New, Result, Var, check::*, emit,
    op::with_float, register_op, tensor::Dim,
};

use super::{
    cubic,
    elimination::{eliminate, substitute},
    inverse::MATRICES,
    refused, right_sides, size, square, transposed,
};
use crate::{
    Math,
    kernel_helpers::{KernelFloat, wide},
    matmul::product,
};

/// Solutions of linear equations: `x · out = y`. A singular matrix is an error, as in the reference.
#[register_op(grad = SolveGrad, primitive)]
pub struct Solve<V = Var> {
    /// Square matrices, `[.., n, n]`.
    #[input]
    pub x: V,
    /// Right-hand sides, `[.., n, m]`, or vectors, `[.., n]`.
    #[input]
    pub y: V,
    /// Same shape as `y`.
    #[output]
    pub out: V,
}
impl Infer for Solve<Meta> {
    fn infer(&mut self) -> Result<()> {
        square(&self.x)?;
        if self.y.rank() + 1 == self.x.rank() {
            self.y.same_dtype(&self.x)?;
            let fits = self.y.dims.iter().zip(&*self.x.dims).all(|(m, n)| m.agrees(*n));
            self.y.require(fits, || format!("vectors of the rows of {} are needed", self.x.dims))?;
        } else {
            right_sides(&self.x, &self.y)?;
        }
        self.out.like(&self.y);
        Ok(())
    }

    fn flops(&self) -> Dim {
        cubic(&self.x) + Dim::from(2) * self.out.dims.numel() * self.x.dims[self.x.rank() - 1]
    }
}
impl Solve<Buf<'_>> {
    /// The number of equations, and of right-hand sides of each matrix.
    fn sizes(&self) -> (usize, usize) {
        let is_vector = self.y.dims().len() < self.x.dims().len();
        (size(&self.x), if is_vector { 1 } else { size(&self.y) })
    }
}
impl Kernel for Solve<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let (n, m) = self.sizes();
        with_float!(self.x, T => cx.scratch::<f64, _>(n * n + n * m, |scratch| {
            let (matrix, sides) = scratch.split_at_mut(n * n);
            let all = self.x.slice::<T>()?.chunks_exact((n * n).max(1));
            let right = self.y.slice::<T>()?.chunks_exact((n * m).max(1));
            let outputs = self.out.slice_mut::<T>()?.chunks_exact_mut((n * m).max(1));
            for (i, ((x, y), out)) in all.zip(right).zip(outputs).enumerate() {
                matrix.iter_mut().zip(x).for_each(|(to, from)| *to = wide(*from));
                sides.iter_mut().zip(y).for_each(|(to, from)| *to = wide(*from));
                if eliminate(matrix, sides, n, m).is_none() {
                    return Err(refused(&self.x, i, "singular: the equations have no unique solution"));
                }
                substitute(matrix, sides, n, m);
                out.iter_mut().zip(&*sides).for_each(|(to, from)| *to = T::of(*from));
            }
            Ok(())
        }))
    }

    fn scratch_bytes(&self, _: usize) -> usize {
        let (n, m) = self.sizes();
        n.saturating_mul(n.saturating_add(m)).saturating_mul(size_of::<f64>())
    }
}
autobwd::samples!(
    Solve,
    [
        Solve { x: given([2, 3, 3], MATRICES), y: uniform([2, 3, 4]), out: out() },
        Solve { x: given([2, 3, 3], MATRICES), y: uniform([2, 3]), out: out() },
        Solve { x: given([2, 2], [0.0, 2.0, -3.0, 0.5]), y: uniform([2, 1]), out: out() },
        Solve { x: given([2, 2], [0.0, 2.0, -3.0, 0.5]), y: uniform([2]), out: out() },
        Solve { x: uniform([0, 2, 2]), y: uniform([0, 2, 3]), out: out() },
        Solve { x: uniform([0, 0]), y: uniform([0, 3]), out: out() },
        Solve { x: given([2, 2], [0.0, 2.0, -3.0, 0.5]), y: uniform([2, 0]), out: out() },
        Solve { x: given([2, 2], [1.0, 2.0, 2.0, 4.0]), y: uniform([2, 1]), out: out() }
            .fails("`X`: matrix 0 is singular: the equations have no unique solution"),
        Solve { x: uniform([2, 2, 2]), y: uniform([2, 3]), out: out() }
            .fails("`Y`: vectors of the rows of [2, 2, 2] are needed"),
        Solve { x: uniform([2, 2]), y: uniform([3, 2]), out: out() }
            .fails("`Y`: matrices with the dimensions of [2, 2], except for the last one, are needed"),
        Solve { x: uniform([2, 3]), y: uniform([2, 2]), out: out() }.fails("`X`: square matrices are needed"),
        Solve { x: uniform([2, 2]), y: integers_below(9, [2, 2]), out: out() }
            .fails("`Y`: dtype int64 does not match"),
        Solve { x: uniform([2, 2]), y: integers_below(9, [2]), out: out() }
            .fails("`Y`: dtype int64 does not match"),
        Solve { x: integers_below(9, [2, 2]), y: integers_below(9, [2, 2]), out: out() }
            .fails("`X`: floating point numbers are needed"),
    ]
);

/// `dy` solves `xᵀ · dy = dout`, and `dx = -dy · outᵀ`.
#[register_op(grad_of = Solve, grad = Composed, composed)]
pub struct SolveGrad<V = Var> {
    pub x: V,
    #[input(shape_only)]
    pub y: V,
    pub out: V,
    pub dout: V,
    #[output(like = x)]
    pub dx: Option<V>,
    #[output(like = y)]
    pub dy: Option<V>,
}
impl Composition for SolveGrad<Expr> {
    fn compose(&mut self) {
        let y = (&self.dout).into();
        let dy = emit(Solve { x: transposed(&self.x).into(), y, out: New }).out;
        let is_vector = dy.dims().len() < self.x.dims().len();
        let columns = |x: &Expr| if is_vector { x.unsqueeze(&[-1]) } else { x.clone() };
        self.dx = Some(-product([&columns(&dy), &columns(&self.out)], [false, true]));
        self.dy = Some(dy);
    }
}
