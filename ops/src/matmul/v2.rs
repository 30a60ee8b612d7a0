//! Batched matrix product over the last two dimensions, with broadcast batch dimensions.

use autobwd::{Buf, Cx, Infer, Kernel, Meta, Multilinear, Result, Var, check::*, register_op, tensor::Dim};

use super::products::{inner_dim, matmul_dims, multiply, multiply_grad};
use crate::update::SgdOp;

/// Matrix product `out = x · y` over the last two dimensions.
///
/// The dimensions before them are batch dimensions, which broadcast. A vector on the left is a row, a vector on the
/// right a column; neither is transposed or has a dimension in `out`.
#[register_op(grad = MatmulV2Grad, infallible)]
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
#[register_op(grad_of = MatmulV2, grad = Multilinear, inferred, infallible, peephole = SgdOp)]
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
