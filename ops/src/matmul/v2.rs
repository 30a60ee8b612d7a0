//! Batched matrix product over the last two dimensions, with broadcast batch dimensions.

use autobwd::{
    Buf, Composition, Cx, Expr, Infer, Kernel, Meta, Multilinear, New, Result, Var, check::*, emit,
    register_op, tensor::Dim,
};

use super::products::{inner_dim, matmul_dims, multiply, multiply_grad};
use crate::{Math, math::sum_to, update::SgdOp};

/// Matrix product `out = x · y` over the last two dimensions.
///
/// The dimensions before them are batch dimensions, which broadcast. A vector on the left is a row, a vector on the
/// right a column; neither is transposed or has a dimension in `out`.
#[register_op(grad = MatmulV2Grad, infallible, factors, primitive)]
pub struct MatmulV2<V = Var> {
    /// Left factors, `[.., m, k]` or `[k]`.
    #[input]
    pub x: V,
    /// Right factors, `[.., k, n]` or `[k]`.
    #[input]
    pub y: V,
    /// `[.., m, n]`.
    #[output]
    pub out: V,
    /// The left factors are stored as `[.., k, m]`.
    #[attr(default = false)]
    pub trans_x: bool,
    /// The right factors are stored as `[.., n, k]`.
    #[attr(default = false)]
    pub trans_y: bool,
}
impl Infer for MatmulV2<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.out.set(self.x.dtype, matmul_dims(&self.x, self.trans_x, &self.y, self.trans_y)?);
        Ok(())
    }

    fn flops(&self) -> Dim {
        Dim::from(2) * self.out.dims.numel() * inner_dim(&self.x, self.trans_x)
    }
}
impl Kernel for MatmulV2<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        multiply(cx, [&self.x, &self.y], [self.trans_x, self.trans_y], 1.0, &mut self.out)
    }
}
autobwd::samples!(
    MatmulV2,
    [
        matmul_v2(uniform([2, 3]), uniform([3, 4])),
        MatmulV2 { trans_x: true, ..matmul_v2(uniform([3, 2]), uniform([3, 4])) },
        MatmulV2 { trans_y: true, ..matmul_v2(uniform([2, 3]), uniform([4, 3])) },
        MatmulV2 { trans_x: true, trans_y: true, ..matmul_v2(uniform([3, 2]), uniform([4, 3])) },
        matmul_v2(uniform([5, 2, 3]), uniform([5, 3, 4])),
        MatmulV2 { trans_x: true, trans_y: true, ..matmul_v2(uniform([5, 3, 2]), uniform([5, 4, 3])) },
        matmul_v2(uniform([5, 2, 3]), uniform([3, 4])),
        MatmulV2 { trans_y: true, ..matmul_v2(uniform([5, 2, 3]), uniform([1, 4, 3])) },
        MatmulV2 { trans_x: true, ..matmul_v2(uniform([5, 3, 2]), uniform([3, 4])) },
        matmul_v2(uniform([2, 3]), uniform([5, 3, 4])),
        matmul_v2(uniform([5, 1, 2, 3]), uniform([6, 3, 4])),
        MatmulV2 { trans_y: true, ..matmul_v2(uniform([3]), uniform([3])) },
        MatmulV2 { trans_x: true, ..matmul_v2(uniform([3]), uniform([5, 3, 4])) },
        matmul_v2(uniform([5, 2, 3]), uniform([3])),
        matmul_v2(uniform([2, 0]), uniform([0, 3])),
        matmul_v2(uniform([0, 2, 3]), uniform([1, 3, 4])),
        MatmulV2 { trans_y: true, ..matmul_v2(uniform([2, 3]), uniform([3, 4])) }
            .fails("`Y`: 3 rows are needed when transposed, not"),
        matmul_v2(uniform([5, 2, 3]), uniform([6, 3, 4]))
            .fails("`Y`: matrices that broadcast with [5, 2, 3] of `X` are needed"),
        matmul_v2(uniform([]), uniform([3, 4])).fails("`X`: a vector or matrices are needed"),
    ]
);

fn matmul_v2(x: Draw, y: Draw) -> MatmulV2<Draw> {
    MatmulV2 { x, y, out: out(), trans_x: false, trans_y: false }
}

/// `dx = dout · yᵀ`, `dy = xᵀ · dout`, each summed over the broadcast batch dimensions of its factor; the gradient of a
/// factor that is stored transposed is transposed, too.
#[register_op(grad_of = MatmulV2, grad = Multilinear, inferred, infallible, factors, peephole = SgdOp)]
pub struct MatmulV2Grad<V = Var> {
    pub x: V,
    pub y: V,
    pub dout: V,
    #[output]
    pub dx: Option<V>,
    #[output]
    pub dy: Option<V>,
    pub trans_x: bool,
    pub trans_y: bool,
}
impl Kernel for MatmulV2Grad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let (factors, transposed) = ([&self.x, &self.y], [self.trans_x, self.trans_y]);
        multiply_grad(cx, factors, transposed, 1.0, &self.dout, [&mut self.dx, &mut self.dy])
    }
}
impl Composition for MatmulV2Grad<Expr> {
    fn compose(&mut self) {
        let (x, trans_x) = matrices(&self.x, 0, self.trans_x);
        let (y, trans_y) = matrices(&self.y, 1, self.trans_y);
        let mut dout = self.dout.clone();
        if self.x.dims().len() == 1 {
            dout = dout.unsqueeze(&[y.dims().len() as i32 - 2]);
        }
        if self.y.dims().len() == 1 {
            dout = dout.unsqueeze(&[dout.dims().len() as i32]);
        }
        let dx = match trans_x {
            false => product([&dout, &y], [false, !trans_y]),
            true => product([&y, &dout], [trans_y, true]),
        };
        // One matrix on the right and contiguous rows on the left make one product.
        let is_one = y.dims().len() == 2 && x.dims().len() > 2 && !trans_x;
        let [x_rows, dout] = [&x, &dout].map(|x| if is_one { x.flatten(0, -2) } else { x.clone() });
        let dy = match trans_y {
            false => product([&x_rows, &dout], [!trans_x, false]),
            true => product([&dout, &x_rows], [true, trans_x]),
        };
        self.dx = Some(as_stored(&self.x, 0, &over_batch(dx, &x, &y)));
        self.dy = Some(as_stored(&self.y, 1, &if is_one { dy } else { over_batch(dy, &y, &x) }));
    }
}

/// `x · y`, each perhaps transposed.
pub(crate) fn product([x, y]: [&Expr; 2], [trans_x, trans_y]: [bool; 2]) -> Expr {
    emit(MatmulV2 { x: x.into(), y: y.into(), out: New, trans_x, trans_y }).out
}

/// A factor as matrices, and whether they are transposed: a vector gets this axis of size 1.
fn matrices(factor: &Expr, axis: i32, transposed: bool) -> (Expr, bool) {
    match factor.dims().len() {
        1 => (factor.unsqueeze(&[axis]), false),
        _ => (factor.clone(), transposed),
    }
}

/// The gradient of a factor, from the gradient of its matrices.
fn as_stored(factor: &Expr, axis: i32, gradient: &Expr) -> Expr {
    if factor.dims().len() == 1 { gradient.squeeze(&[axis]) } else { gradient.clone() }
}

/// The sum of a gradient over the batch dimensions in which its factor is broadcast to the other one.
fn over_batch(gradient: Expr, factor: &Expr, other: &Expr) -> Expr {
    let batch = |x: &Expr| x.dims().iter().rev().skip(2).copied().collect::<Vec<_>>();
    let (own, others) = (batch(factor), batch(other));
    // An unknown dimension may be 1.
    let is_whole = |(own, other): (&Dim, &Dim)| *other == 1 || own.get().is_some_and(|n| n != 1);
    let is_summed = own.len() < others.len() || !own.iter().zip(&others).all(is_whole);
    if is_summed { sum_to(&gradient, factor) } else { gradient }
}
