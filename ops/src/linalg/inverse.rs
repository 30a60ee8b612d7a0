//! Inverses of matrices.

use autobwd::{
    Buf, Composed, Composition, Cx, Expr, Infer, Kernel, Meta, Result, Var, check::*, op::with_float,
    register_op, tensor::Dim,
};

use super::{
    cubic,
    elimination::{eliminate, substitute},
    refused, size, square,
};
use crate::{
    kernel_helpers::{KernelFloat, wide},
    matmul::product,
};

/// Inverses of matrices: `output · input = 1`. A singular matrix is an error, as in the reference.
#[register_op(grad = InverseGrad, primitive)]
pub struct Inverse<V = Var> {
    /// Square matrices, `[.., n, n]`.
    #[input]
    pub input: V,
    /// Same shape as `input`.
    #[output]
    pub output: V,
}
impl Infer for Inverse<Meta> {
    fn infer(&mut self) -> Result<()> {
        square(&self.input)?;
        self.output.like(&self.input);
        Ok(())
    }

    fn flops(&self) -> Dim {
        cubic(&self.input)
    }
}
impl Kernel for Inverse<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let n = size(&self.input);
        with_float!(self.input, T => cx.scratch::<f64, _>(2 * n * n, |scratch| {
            let (matrix, sides) = scratch.split_at_mut(n * n);
            let all = self.input.slice::<T>()?.chunks_exact((n * n).max(1));
            let outputs = self.output.slice_mut::<T>()?.chunks_exact_mut((n * n).max(1));
            for (i, (input, output)) in all.zip(outputs).enumerate() {
                matrix.iter_mut().zip(input).for_each(|(to, from)| *to = wide(*from));
                sides.iter_mut().enumerate().for_each(|(at, x)| *x = f64::from(u8::from(at / n == at % n)));
                if eliminate(matrix, sides, n, n).is_none() {
                    return Err(refused(&self.input, i, "singular, and has no inverse"));
                }
                substitute(matrix, sides, n, n);
                output.iter_mut().zip(&*sides).for_each(|(to, from)| *to = T::of(*from));
            }
            Ok(())
        }))
    }

    fn scratch_bytes(&self, _: usize) -> usize {
        let n = size(&self.input);
        n.saturating_mul(n).saturating_mul(2 * size_of::<f64>())
    }
}
autobwd::samples!(
    Inverse,
    [
        Inverse { input: given([2, 3, 3], MATRICES), output: out() },
        Inverse { input: given([2, 2], [0.0, 2.0, -3.0, 0.5]), output: out() },
        Inverse { input: positive([2, 1, 1]), output: out() },
        Inverse { input: uniform([0, 2, 2]), output: out() },
        Inverse { input: uniform([2, 0, 0]), output: out() },
        Inverse { input: given([2, 2, 2], [1.0, 0.0, 0.0, 2.0, 1.0, 2.0, 2.0, 4.0]), output: out() }
            .fails("`Input`: matrix 1 is singular, and has no inverse"),
        Inverse { input: uniform([2, 3]), output: out() }.fails("`Input`: square matrices are needed"),
        Inverse { input: uniform([3]), output: out() }.fails("`Input`: square matrices are needed"),
        Inverse { input: integers_below(9, [2, 2]), output: out() }
            .fails("`Input`: floating point numbers are needed"),
    ]
);

/// Two well-conditioned matrices of 3 rows.
pub(super) const MATRICES: [f64; 18] = [
    2.0, 0.5, -0.25, 0.25, -3.0, 0.75, -0.5, 0.125, 2.5, //
    0.5, 2.0, 0.25, 2.5, 0.25, -0.5, 0.125, -0.75, 3.0,
];

/// `dinput = -outputᵀ · doutput · outputᵀ`.
#[register_op(grad_of = Inverse, grad = Composed, composed)]
pub struct InverseGrad<V = Var> {
    pub output: V,
    pub doutput: V,
    #[output(like = output)]
    pub dinput: V,
}
impl Composition for InverseGrad<Expr> {
    fn compose(&mut self) {
        let left = product([&self.output, &self.doutput], [true, false]);
        self.dinput = -product([&left, &self.output], [false, true]);
    }
}
