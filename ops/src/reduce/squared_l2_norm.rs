//! Sum of squares.

use autobwd::{
    Buf, Composed, Composition, Cx, Expr, Infer, Kernel, Meta, Result, Var, check::*, op::with_float,
    register_op,
};

use super::tiling::total;
use crate::{
    Math,
    kernel_helpers::{KernelFloat, PART, nth_part, stored},
};

/// Sum of the squares of all elements: `out = Σ x²`.
#[register_op(grad = SquaredL2NormGrad, infallible)]
pub struct SquaredL2Norm<V = Var> {
    /// Any shape, whole or sparse.
    #[input(sparse)]
    pub x: V,
    /// The sum, `[1]`.
    #[output]
    pub out: V,
}
impl Infer for SquaredL2Norm<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.x.float()?;
        self.out.set(self.x.dtype, [1]);
        Ok(())
    }
}
impl Kernel for SquaredL2Norm<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        with_float!(self.x, T => {
            let sum = total(cx, stored::<T>(&self.x)?, |x| x * x);
            self.out.slice_mut()?.fill(T::of(sum));
            Ok(())
        })
    }
}
impl Composition for SquaredL2Norm<Expr> {
    fn compose(&mut self) {
        self.out = self.x.square().sum(&[]).reshape(&[1]);
    }
}
autobwd::samples!(
    SquaredL2Norm,
    [
        SquaredL2Norm { x: uniform([2, 3]), out: out() },
        SquaredL2Norm { x: uniform([]), out: out() },
        SquaredL2Norm { x: uniform([0, 3]), out: out() },
        SquaredL2Norm { x: integers_below(9, [2]), out: out() }
            .fails("`X`: floating point numbers are needed"),
    ]
);

/// `dx = 2 * x * dout`.
#[register_op(grad_of = SquaredL2Norm, grad = Composed, inferred, infallible)]
pub struct SquaredL2NormGrad<V = Var> {
    pub x: V,
    pub dout: V,
    #[output]
    pub dx: V,
}
impl Kernel for SquaredL2NormGrad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        with_float!(self.x, T => {
            let (x, factor) = (self.x.slice::<T>()?, 2.0 * self.dout.slice::<T>()?[0]);
            cx.chunks_mut(self.dx.slice_mut::<T>()?, PART, |part, dx| {
                let x = nth_part(x, part, dx.len());
                dx.iter_mut().zip(x).for_each(|(dx, x)| *dx = factor * *x);
            });
            Ok(())
        })
    }
}
