//! A matrix product that is added to a tensor.

use autobwd::{
    Buf, Composed, Composition, Cx, Expr, Infer, Kernel, Meta, Result, Var,
    check::*,
    op::with_float,
    register_op,
    tensor::{Dim, OptionalBuf},
};

use super::products::{matmul_dims, multiply, multiply_grad, scale};
use crate::{
    Math,
    kernel_helpers::{KernelFloat, PART, pieces},
    reduce::ReductionTiling,
};

/// Sum with a matrix product: `out = beta * input + alpha * x · y`.
#[register_op(grad = AddmmGrad, infallible)]
pub struct Addmm<V = Var> {
    /// One or two dimensions that broadcast to `[m, n]`.
    #[input]
    pub input: V,
    /// Left factor, `[m, k]`.
    #[input]
    pub x: V,
    /// Right factor, `[k, n]`.
    #[input]
    pub y: V,
    /// `[m, n]`.
    #[output]
    pub out: V,
    /// Factor of the product.
    #[attr("Alpha", default = 1.0)]
    pub alpha: f32,
    /// Factor of `input`.
    #[attr("Beta", default = 1.0)]
    pub beta: f32,
}
impl Infer for Addmm<Meta> {
    fn infer(&mut self) -> Result<()> {
        let (input, x, y) = (&self.input, &self.x, &self.y);
        for matrix in [x, y] {
            matrix.require(matrix.rank() == 2, || "a matrix is needed".into())?;
        }
        let dims = matmul_dims(x, false, y, false)?;
        input.same_dtype(x)?;
        let fits = |(own, n): (&Dim, &Dim)| *own == 1 || own.agrees(*n);
        let broadcasts = input.dims.iter().rev().zip(dims.iter().rev()).all(fits);
        let known = matches!(input.rank(), 1 | 2) && broadcasts;
        input.require(known, || format!("one or two dimensions that broadcast to {dims} are needed"))?;
        self.out.set(x.dtype, dims);
        Ok(())
    }

    fn flops(&self) -> Dim {
        Dim::from(2) * self.out.dims.numel() * self.y.dims[0]
    }
}
impl Kernel for Addmm<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        multiply(cx, [&self.x, &self.y], [false; 2], self.alpha, &mut self.out)?;
        let (rows, columns) = matrix(&self.input);
        let n = self.y.dims()[1];
        with_float!(self.out, T => {
            let (input, beta) = (self.input.slice::<T>()?, T::of(self.beta.into()));
            cx.chunks_mut(self.out.slice_mut::<T>()?, PART, |part, out| {
                pieces(out, part * PART, n, usize::MAX, |row, column, out| {
                    let row = if rows == 1 { 0 } else { row } * columns;
                    for (i, out) in (column..).zip(out) {
                        *out += beta * input[row + if columns == 1 { 0 } else { i }];
                    }
                });
            });
            Ok(())
        })
    }
}
impl Composition for Addmm<Expr> {
    fn compose(&mut self) {
        let product = self.x.matmul(&self.y) * f64::from(self.alpha);
        self.out = product + &self.input * f64::from(self.beta);
    }
}
autobwd::samples!(
    Addmm,
    [
        addmm(uniform([2, 4]), 1.0, 1.0),
        addmm(uniform([4]), 0.5, -2.0),
        addmm(uniform([1, 4]), 2.0, 0.25),
        addmm(uniform([2, 1]), 0.0, 3.0),
        addmm(uniform([1]), -1.0, 0.0),
        Addmm { x: uniform([2, 0]), y: uniform([0, 4]), ..addmm(uniform([2, 4]), 1.0, 0.5) },
        Addmm { x: uniform([0, 3]), ..addmm(uniform([4]), 1.0, 0.5) },
        addmm(uniform([3]), 1.0, 1.0)
            .fails("`Input`: one or two dimensions that broadcast to [2, 4] are needed"),
        addmm(uniform([]), 1.0, 1.0)
            .fails("`Input`: one or two dimensions that broadcast to [2, 4] are needed"),
        addmm(uniform([1, 2, 4]), 1.0, 1.0).fails("`Input`: one or two dimensions"),
        Addmm { x: uniform([3]), ..addmm(uniform([4]), 1.0, 1.0) }.fails("`X`: a matrix is needed"),
        Addmm { x: uniform([2, 2]), ..addmm(uniform([4]), 1.0, 1.0) }.fails("`Y`: 2 rows are needed"),
        addmm(integers_below(9, [4]), 1.0, 1.0).fails("`Input`: dtype int64 does not match"),
    ]
);

fn addmm(input: Draw, alpha: f32, beta: f32) -> Addmm<Draw> {
    Addmm { input, x: uniform([2, 3]), y: uniform([3, 4]), out: out(), alpha, beta }
}

/// Rows and columns of the tensor that is added.
fn matrix(input: &Buf<'_>) -> (usize, usize) {
    match input.dims() {
        [rows, columns] => (*rows, *columns),
        dims => (1, dims.iter().product()),
    }
}

/// `dinput = beta * dout`, summed over its broadcast dimensions; `dx = alpha * dout · yᵀ`, `dy = alpha * xᵀ · dout`.
#[register_op(grad_of = Addmm, grad = Composed, inferred, infallible)]
pub struct AddmmGrad<V = Var> {
    #[input(shape_only)]
    pub input: V,
    pub x: V,
    pub y: V,
    pub dout: V,
    #[output]
    pub dinput: Option<V>,
    #[output]
    pub dx: Option<V>,
    #[output]
    pub dy: Option<V>,
    pub alpha: f32,
    pub beta: f32,
}
impl Kernel for AddmmGrad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let (factors, (rows, columns)) = ([&self.x, &self.y], matrix(&self.input));
        multiply_grad(cx, factors, [false; 2], self.alpha, &self.dout, [&mut self.dx, &mut self.dy])?;
        let sums = u64::from(rows == 1) | u64::from(columns == 1) << 1;
        with_float!(self.dout, T => {
            if let Some(dinput) = self.dinput.slice_mut::<T>()? {
                ReductionTiling::of(self.dout.dims(), sums).reduce(cx, self.dout.slice()?, dinput, 1.0);
                scale(cx, dinput, self.beta);
            }
            Ok(())
        })
    }
}
