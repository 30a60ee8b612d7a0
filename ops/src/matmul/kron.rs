//! Kronecker product.

use autobwd::{
    Buf, Composition, Cx, Dims, Expr, Infer, Kernel, Meta, Multilinear, Result, Var,
    check::*,
    op::with_float,
    register_op,
    tensor::{Dim, OptionalBuf},
};

use crate::{
    Math,
    kernel_helpers::PART,
    math::{DimExpr, all_sizes},
};

/// Kronecker product: `out[.., i * n + j, ..] = x[.., i, ..] * y[.., j, ..]`, where `y` has `n` elements in that
/// dimension.
///
/// The operand of lower rank has dimensions of size 1 in front.
#[register_op(grad = KronGrad, infallible)]
pub struct Kron<V = Var> {
    /// Any shape.
    #[input]
    pub x: V,
    /// Any shape.
    #[input]
    pub y: V,
    /// In each dimension, the product of the sizes of `x` and `y`.
    #[output]
    pub out: V,
}
impl Infer for Kron<Meta> {
    fn infer(&mut self) -> Result<()> {
        let (x, y) = (&self.x.dims, &self.y.dims);
        self.x.float()?;
        self.y.same_dtype(&self.x)?;
        let rank = x.len().max(y.len());
        let size =
            |dims: &Dims, i: usize| (i + dims.len()).checked_sub(rank).map_or(Dim::from(1), |i| dims[i]);
        self.out.set(self.x.dtype, (0..rank).map(|i| size(x, i) * size(y, i)).collect::<Dims>());
        Ok(())
    }
}
impl Kernel for Kron<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let pairs = KronPairs { x: self.x.dims(), y: self.y.dims() };
        with_float!(self.x, T => {
            let (x, y) = (self.x.slice::<T>()?, self.y.slice::<T>()?);
            cx.chunks_mut(self.out.slice_mut::<T>()?, PART, |part, out| {
                for (i, out) in (part * PART..).zip(out) {
                    let (at_x, at_y) = pairs.at(i);
                    *out = x[at_x] * y[at_y];
                }
            });
            Ok(())
        })
    }
}
impl Composition for Kron<Expr> {
    fn compose(&mut self) {
        let (mut x, mut y, one) = (all_sizes(&self.x), all_sizes(&self.y), DimExpr::from(1));
        let rank = x.len().max(y.len());
        for short in [&mut x, &mut y] {
            short.splice(..0, vec![one.clone(); rank - short.len()]);
        }
        // Each dimension of the result as two.
        let left: Vec<DimExpr> = x.iter().flat_map(|m| [m.clone(), one.clone()]).collect();
        let right: Vec<DimExpr> = y.iter().flat_map(|n| [one.clone(), n.clone()]).collect();
        let product = self.x.reshape_to(&left) * self.y.reshape_to(&right);
        self.out = product.reshape_to(&x.iter().zip(&y).map(|(m, n)| m * n).collect::<Vec<_>>());
    }
}
autobwd::samples!(
    Kron,
    [
        Kron { x: uniform([2, 3]), y: uniform([4, 5]), out: out() },
        Kron { x: uniform([3]), y: uniform([2, 4]), out: out() },
        Kron { x: uniform([2, 1, 3]), y: uniform([4]), out: out() },
        Kron { x: uniform([]), y: uniform([3]), out: out() },
        Kron { x: uniform([]), y: uniform([]), out: out() },
        Kron { x: uniform([2, 0]), y: uniform([3, 4]), out: out() },
        Kron { x: uniform([2]), y: integers_below(9, [3]), out: out() }
            .fails("`Y`: dtype int64 does not match"),
        Kron { x: integers_below(9, [3]), y: integers_below(9, [3]), out: out() }
            .fails("`X`: floating point numbers are needed"),
    ]
);

/// The factors of each element of a product.
struct KronPairs<'a> {
    x: &'a [usize],
    y: &'a [usize],
}

impl KronPairs<'_> {
    /// The positions of the factors of element `i`.
    fn at(&self, mut i: usize) -> (usize, usize) {
        let size =
            |dims: &[usize], axis: usize| dims.len().checked_sub(axis + 1).map_or(1, |axis| dims[axis]);
        let (mut at, mut stride) = ((0, 0), (1, 1));
        // From the last axis.
        for axis in 0..self.x.len().max(self.y.len()) {
            let (m, n) = (size(self.x, axis), size(self.y, axis));
            let place = i % (m * n);
            i /= m * n;
            at = (at.0 + place / n * stride.0, at.1 + place % n * stride.1);
            stride = (stride.0 * m, stride.1 * n);
        }
        at
    }
}

/// `dx` and `dy` are the sums of `dout` times the other factor.
#[register_op(grad_of = Kron, grad = Multilinear, inferred, infallible)]
pub struct KronGrad<V = Var> {
    pub x: V,
    pub y: V,
    pub dout: V,
    #[output]
    pub dx: Option<V>,
    #[output]
    pub dy: Option<V>,
}
impl Kernel for KronGrad<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        let pairs = KronPairs { x: self.x.dims(), y: self.y.dims() };
        with_float!(self.dout, T => {
            let (x, y, dout) = (self.x.slice::<T>()?, self.y.slice::<T>()?, self.dout.slice::<T>()?);
            let (mut dx, mut dy) = (self.dx.slice_mut::<T>()?, self.dy.slice_mut::<T>()?);
            for grad in [&mut dx, &mut dy].into_iter().flatten() {
                grad.fill(0.0);
            }
            for (i, dout) in dout.iter().enumerate() {
                let (at_x, at_y) = pairs.at(i);
                if let Some(dx) = &mut dx {
                    dx[at_x] += dout * y[at_y];
                }
                if let Some(dy) = &mut dy {
                    dy[at_y] += dout * x[at_x];
                }
            }
            Ok(())
        })
    }
}
