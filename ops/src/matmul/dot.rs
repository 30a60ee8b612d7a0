//! Products with vectors: `dot` and `mv`.

use autobwd::{
    Buf, Composition, Cx, Dims, Expr, Infer, Kernel, Meta, Multilinear, Result, Var,
    check::*,
    op::with_float,
    register_op,
    tensor::{Dim, OptionalBuf},
};

use super::products::{multiply, multiply_grad};
use crate::{
    Math,
    kernel_helpers::{KernelFloat, PART, add_up, wide},
};

/// Dot product of vectors, or of each pair of rows of two matrices: `out = Σ x * y`.
#[register_op(grad = DotGrad, infallible)]
pub struct Dot<V = Var> {
    /// One or two dimensions.
    #[input]
    pub x: V,
    /// Same shape as `x`.
    #[input]
    pub y: V,
    /// `x` without its last dimension.
    #[output]
    pub out: V,
}
impl Infer for Dot<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.x.float()?;
        self.x.require(matches!(self.x.rank(), 1 | 2), || "one or two dimensions are needed".into())?;
        self.y.same_as(&self.x)?;
        let rows = self.x.rank() - 1;
        let dims = self.x.dims.iter().zip(&*self.y.dims).take(rows).map(|(x, y)| x.or(*y));
        self.out.set(self.x.dtype, dims.collect::<Dims>());
        Ok(())
    }
}
impl Kernel for Dot<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let n = width(&self.x);
        with_float!(self.x, T => {
            let (x, y) = (self.x.slice::<T>()?, self.y.slice::<T>()?);
            let rows = PART.div_ceil(n.max(1));
            cx.chunks_mut(self.out.slice_mut::<T>()?, rows, |part, out| {
                for (i, out) in (part * rows..).zip(out) {
                    let (x, y) = (&x[i * n..][..n], &y[i * n..][..n]);
                    *out = T::of(add_up(x.iter().zip(y).map(|(x, y)| wide(*x) * wide(*y))));
                }
            });
            Ok(())
        })
    }
}
impl Composition for Dot<Expr> {
    fn compose(&mut self) {
        self.out = (&self.x * &self.y).sum(&[-1]);
    }
}
autobwd::samples!(
    Dot,
    [
        Dot { x: uniform([3]), y: uniform([3]), out: out() },
        Dot { x: uniform([2, 3]), y: uniform([2, 3]), out: out() },
        Dot { x: uniform([0]), y: uniform([0]), out: out() },
        Dot { x: uniform([2, 0]), y: uniform([2, 0]), out: out() },
        Dot { x: uniform([0, 3]), y: uniform([0, 3]), out: out() },
        Dot { x: uniform([]), y: uniform([]), out: out() }.fails("`X`: one or two dimensions are needed"),
        Dot { x: uniform([2, 3]), y: uniform([3]), out: out() }.fails("`Y`: shape [3]"),
        Dot { x: integers_below(9, [3]), y: integers_below(9, [3]), out: out() }
            .fails("`X`: floating point numbers are needed"),
    ]
);

/// Elements of a row.
fn width(x: &Buf<'_>) -> usize {
    x.dims().last().copied().unwrap_or(1)
}

/// `dx = dout * y`, `dy = dout * x`, with one element of `dout` for each row.
#[register_op(grad_of = Dot, grad = Multilinear, inferred, infallible)]
pub struct DotGrad<V = Var> {
    pub x: V,
    pub y: V,
    pub dout: V,
    #[output]
    pub dx: Option<V>,
    #[output]
    pub dy: Option<V>,
}
impl Kernel for DotGrad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let n = width(&self.x);
        with_float!(self.dout, T => {
            let (x, y, dout) = (self.x.slice::<T>()?, self.y.slice::<T>()?, self.dout.slice::<T>()?);
            let grads = [(self.dx.slice_mut::<T>()?, y), (self.dy.slice_mut()?, x)];
            for (grad, other) in grads {
                let Some(grad) = grad else { continue };
                cx.chunks_mut(grad, PART, |part, grad| {
                    for (i, grad) in (part * PART..).zip(grad) {
                        *grad = dout[i / n] * other[i];
                    }
                });
            }
            Ok(())
        })
    }
}

/// Product of a matrix and a vector: `out = x · vec`.
#[register_op(grad = MvGrad, infallible, factors)]
pub struct Mv<V = Var> {
    /// A matrix, `[m, n]`.
    #[input]
    pub x: V,
    /// A vector, `[n]`.
    #[input]
    pub vec: V,
    /// A vector, `[m]`.
    #[output]
    pub out: V,
}
impl Infer for Mv<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.x.float()?;
        let [m, n] = self.x.unpack()?;
        self.vec.same_dtype(&self.x)?;
        let fits = self.vec.rank() == 1 && self.vec.dims[0].agrees(n);
        self.vec.require(fits, || format!("a vector of {n} elements is needed"))?;
        self.out.set(self.x.dtype, [m].into_iter().collect::<Dims>());
        Ok(())
    }

    fn flops(&self) -> Dim {
        Dim::from(2) * self.x.dims.numel()
    }
}
impl Kernel for Mv<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        multiply(cx, [&self.x, &self.vec], [false; 2], 1.0, &mut self.out)
    }
}
impl Composition for Mv<Expr> {
    fn compose(&mut self) {
        self.out = self.x.matmul(&self.vec);
    }
}
autobwd::samples!(
    Mv,
    [
        Mv { x: uniform([2, 3]), vec: uniform([3]), out: out() },
        Mv { x: uniform([1, 4]), vec: uniform([4]), out: out() },
        Mv { x: uniform([2, 0]), vec: uniform([0]), out: out() },
        Mv { x: uniform([0, 3]), vec: uniform([3]), out: out() },
        Mv { x: uniform([2, 3]), vec: uniform([2]), out: out() }
            .fails("`Vec`: a vector of 3 elements is needed"),
        Mv { x: uniform([2, 3]), vec: uniform([3, 1]), out: out() }
            .fails("`Vec`: a vector of 3 elements is needed"),
        Mv { x: uniform([3]), vec: uniform([3]), out: out() }.fails("`X`"),
    ]
);

/// `dx = dout · vecᵀ`, `dvec = xᵀ · dout`.
#[register_op(grad_of = Mv, grad = Multilinear, inferred, infallible, factors)]
pub struct MvGrad<V = Var> {
    pub x: V,
    pub vec: V,
    pub dout: V,
    #[output]
    pub dx: Option<V>,
    #[output]
    pub dvec: Option<V>,
}
impl Kernel for MvGrad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let factors = [&self.x, &self.vec];
        multiply_grad(cx, factors, [false; 2], 1.0, &self.dout, [&mut self.dx, &mut self.dvec])
    }
}
