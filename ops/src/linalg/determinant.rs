//! Determinants, and their logarithms.

use autobwd::{
    Buf, Composed, Composition, Cx, Dims, Expr, Infer, Kernel, Meta, New, Result, Var, check::*, emit,
    op::with_float, register_op, tensor::Dim,
};

use super::{Inverse, cubic, elimination::eliminate, inverse::MATRICES, size, square, transposed};
use crate::{
    Math,
    kernel_helpers::{KernelFloat, wide},
};

/// Determinants of matrices. The gradient at a singular matrix is an error.
#[register_op(grad = DeterminantGrad, infallible, primitive)]
pub struct Determinant<V = Var> {
    /// Square matrices, `[.., n, n]`.
    #[input]
    pub input: V,
    /// A number for each matrix, `[..]`.
    #[output]
    pub out: V,
}
impl Infer for Determinant<Meta> {
    fn infer(&mut self) -> Result<()> {
        square(&self.input)?;
        self.out.set(self.input.dtype, batch(&self.input));
        Ok(())
    }

    fn flops(&self) -> Dim {
        cubic(&self.input)
    }
}
impl Kernel for Determinant<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let n = size(&self.input);
        with_float!(self.input, T => {
            let out = self.out.slice_mut::<T>()?;
            cx.scratch::<f64, _>(n * n, |matrix| {
                for (input, out) in matrices(self.input.slice::<T>()?, n, out.len()).zip(out) {
                    matrix.iter_mut().zip(input).for_each(|(to, from)| *to = wide(*from));
                    let sign = eliminate(matrix, &mut [], n, 0).unwrap_or(0.0);
                    *out = T::of((0..n).fold(sign, |product, i| product * matrix[i * n + i]));
                }
                Ok(())
            })
        })
    }

    fn scratch_bytes(&self, _: usize) -> usize {
        let n = size(&self.input);
        n.saturating_mul(n).saturating_mul(size_of::<f64>())
    }
}
autobwd::samples!(
    Determinant,
    [
        Determinant { input: given([2, 3, 3], MATRICES), out: out() },
        Determinant { input: given([2, 2], [0.0, 2.0, -3.0, 0.5]), out: out() },
        Determinant { input: positive([2, 1, 1]), out: out() },
        Determinant { input: uniform([0, 2, 2]), out: out() },
        Determinant { input: uniform([2, 0, 0]), out: out() },
        Determinant { input: uniform([2, 3]), out: out() }.fails("`Input`: square matrices are needed"),
        Determinant { input: uniform([3]), out: out() }.fails("`Input`: square matrices are needed"),
        Determinant { input: integers_below(9, [2, 2]), out: out() }
            .fails("`Input`: floating point numbers are needed"),
    ]
);

/// The dimensions that number matrices.
fn batch(x: &Meta) -> Dims {
    x.dims.iter().take(x.rank() - 2).copied().collect()
}

/// The elements of each of `count` matrices; a matrix of size 0 has none.
fn matrices<T>(all: &[T], n: usize, count: usize) -> impl Iterator<Item = &[T]> {
    (0..count).map(move |i| &all[i * n * n..][..n * n])
}

/// `dinput = dout * out * input⁻ᵀ`.
#[register_op(grad_of = Determinant, grad = Composed, composed)]
pub struct DeterminantGrad<V = Var> {
    pub input: V,
    pub out: V,
    pub dout: V,
    #[output(like = input)]
    pub dinput: V,
}
impl Composition for DeterminantGrad<Expr> {
    fn compose(&mut self) {
        self.dinput = inverse_transposed(&self.input) * (&self.dout * &self.out).unsqueeze(&[-1, -2]);
    }
}

fn inverse_transposed(x: &Expr) -> Expr {
    transposed(&emit(Inverse { input: x.into(), output: New }).output)
}

/// Signs of determinants, and natural logarithms of their sizes: 0 and minus infinity for a singular matrix. The gradient
/// there is an error.
#[register_op(grad = SlogdeterminantGrad, infallible, primitive)]
pub struct Slogdeterminant<V = Var> {
    /// Square matrices, `[.., n, n]`.
    #[input]
    pub input: V,
    /// `[2, ..]`: the signs, then the logarithms.
    #[output]
    pub out: V,
}
impl Infer for Slogdeterminant<Meta> {
    fn infer(&mut self) -> Result<()> {
        square(&self.input)?;
        let dims = [Dim::from(2)].into_iter().chain(batch(&self.input).iter().copied()).collect::<Dims>();
        self.out.set(self.input.dtype, dims);
        Ok(())
    }

    fn flops(&self) -> Dim {
        cubic(&self.input)
    }
}
impl Kernel for Slogdeterminant<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let n = size(&self.input);
        with_float!(self.input, T => {
            let out = self.out.slice_mut::<T>()?;
            let (signs, logarithms) = out.split_at_mut(out.len() / 2);
            cx.scratch::<f64, _>(n * n, |matrix| {
                let all = matrices(self.input.slice::<T>()?, n, signs.len());
                for (input, (sign, logarithm)) in all.zip(signs.iter_mut().zip(logarithms)) {
                    matrix.iter_mut().zip(input).for_each(|(to, from)| *to = wide(*from));
                    let Some(start) = eliminate(matrix, &mut [], n, 0) else {
                        (*sign, *logarithm) = (T::of(0.0), T::of(f64::NEG_INFINITY));
                        continue;
                    };
                    let pivots = || (0..n).map(|i| matrix[i * n + i]);
                    *sign = T::of(pivots().fold(start, |sign, pivot| sign * pivot.signum()));
                    *logarithm = T::of(pivots().fold(0.0, |sum, pivot| sum + libm::log(pivot.abs())));
                }
                Ok(())
            })
        })
    }

    fn scratch_bytes(&self, _: usize) -> usize {
        let n = size(&self.input);
        n.saturating_mul(n).saturating_mul(size_of::<f64>())
    }
}
autobwd::samples!(
    Slogdeterminant,
    [
        Slogdeterminant { input: given([2, 3, 3], MATRICES), out: out() },
        Slogdeterminant { input: given([2, 2], [0.0, 2.0, -3.0, 0.5]), out: out() },
        Slogdeterminant { input: positive([4, 1, 1]), out: out() },
        Slogdeterminant { input: uniform([0, 2, 2]), out: out() },
        Slogdeterminant { input: uniform([3, 0, 0]), out: out() },
        Slogdeterminant { input: uniform([2, 3]), out: out() }.fails("`Input`: square matrices are needed"),
        Slogdeterminant { input: uniform([3]), out: out() }.fails("`Input`: square matrices are needed"),
        Slogdeterminant { input: integers_below(9, [2, 2]), out: out() }
            .fails("`Input`: floating point numbers are needed"),
    ]
);

/// `dinput = dout[1] * input⁻ᵀ`.
#[register_op(grad_of = Slogdeterminant, grad = Composed, composed)]
pub struct SlogdeterminantGrad<V = Var> {
    pub input: V,
    pub dout: V,
    #[output(like = input)]
    pub dinput: V,
}
impl Composition for SlogdeterminantGrad<Expr> {
    fn compose(&mut self) {
        let of_logarithms = self.dout.slice(0, 1, 2).squeeze(&[0]);
        self.dinput = inverse_transposed(&self.input) * of_logarithms.unsqueeze(&[-1, -2]);
    }
}
