//! Batches of matrix products: `bmm`, and the older `matmul`, which scales its result.

use autobwd::{
    Buf, Composition, Cx, Expr, Infer, Kernel, Meta, Multilinear, Result, Var, check::*, register_op,
    tensor::Dim,
};

use super::{
    products::{inner_dim, matmul_dims, multiply, multiply_grad},
    v2::product,
};

/// Products of two batches of matrices: `out[i] = x[i] · y[i]`.
#[register_op(grad = BmmGrad, infallible, factors)]
pub struct Bmm<V = Var> {
    /// Left factors, `[batch, m, k]`.
    #[input]
    pub x: V,
    /// Right factors, `[batch, k, n]`.
    #[input]
    pub y: V,
    /// `[batch, m, n]`.
    #[output]
    pub out: V,
}
impl Infer for Bmm<Meta> {
    fn infer(&mut self) -> Result<()> {
        for slot in [&self.x, &self.y] {
            slot.require(slot.rank() == 3, || "3 dimensions are needed".into())?;
        }
        let (batch, other) = (self.x.dims[0], self.y.dims[0]);
        self.y.require(batch.agrees(other), || format!("a batch of {batch} is needed"))?;
        let mut dims = matmul_dims(&self.x, false, &self.y, false)?;
        dims[0] = batch.or(other);
        self.out.set(self.x.dtype, dims);
        Ok(())
    }

    fn flops(&self) -> Dim {
        Dim::from(2) * self.out.dims.numel() * inner_dim(&self.x, false)
    }
}
impl Kernel for Bmm<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        multiply(cx, [&self.x, &self.y], [false; 2], 1.0, &mut self.out)
    }
}
impl Composition for Bmm<Expr> {
    fn compose(&mut self) {
        self.out = product([&self.x, &self.y], [false; 2]);
    }
}
autobwd::samples!(
    Bmm,
    [
        Bmm { x: uniform([5, 2, 3]), y: uniform([5, 3, 4]), out: out() },
        Bmm { x: uniform([1, 2, 3]), y: uniform([1, 3, 4]), out: out() },
        Bmm { x: uniform([0, 2, 3]), y: uniform([0, 3, 4]), out: out() },
        Bmm { x: uniform([5, 2, 0]), y: uniform([5, 0, 4]), out: out() },
        Bmm { x: uniform([5, 2, 3]), y: uniform([1, 3, 4]), out: out() }
            .fails("`Y`: a batch of 5 is needed, not"),
        Bmm { x: uniform([5, 2, 3]), y: uniform([5, 4, 3]), out: out() }.fails("`Y`: 3 rows are needed, not"),
        Bmm { x: uniform([2, 3]), y: uniform([5, 3, 4]), out: out() }
            .fails("`X`: 3 dimensions are needed, not"),
        Bmm { x: uniform([5, 2, 3]), y: uniform([3]), out: out() }.fails("`Y`: 3 dimensions are needed, not"),
    ]
);

/// `dx[i] = dout[i] · y[i]ᵀ`, `dy[i] = x[i]ᵀ · dout[i]`.
#[register_op(grad_of = Bmm, grad = Multilinear, inferred, infallible, factors)]
pub struct BmmGrad<V = Var> {
    pub x: V,
    pub y: V,
    pub dout: V,
    #[output]
    pub dx: Option<V>,
    #[output]
    pub dy: Option<V>,
}
impl Kernel for BmmGrad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let factors = [&self.x, &self.y];
        multiply_grad(cx, factors, [false; 2], 1.0, &self.dout, [&mut self.dx, &mut self.dy])
    }
}

/// Scaled matrix product over the last two dimensions: `out = alpha * x · y`.
///
/// The dimensions before them are batch dimensions, which broadcast. A vector on the left is a row, a vector on the
/// right a column; neither has a dimension in `out`.
#[register_op(grad = MatmulGrad, infallible, factors)]
pub struct Matmul<V = Var> {
    /// Left factors, `[.., m, k]` or `[k]`.
    #[input]
    pub x: V,
    /// Right factors, `[.., k, n]` or `[k]`.
    #[input]
    pub y: V,
    /// `[.., m, n]`.
    #[output]
    pub out: V,
    /// The left factors are matrices stored as `[.., k, m]`.
    #[attr("transpose_X", default = false)]
    pub transpose_x: bool,
    /// The right factors are matrices stored as `[.., n, k]`.
    #[attr("transpose_Y", default = false)]
    pub transpose_y: bool,
    /// Factor of the product.
    #[attr(default = 1.0)]
    pub alpha: f32,
}
impl Infer for Matmul<Meta> {
    fn infer(&mut self) -> Result<()> {
        for (slot, transposed) in [(&self.x, self.transpose_x), (&self.y, self.transpose_y)] {
            slot.require(!transposed || slot.rank() > 1, || "matrices are needed when transposed".into())?;
        }
        self.out.set(self.x.dtype, matmul_dims(&self.x, self.transpose_x, &self.y, self.transpose_y)?);
        Ok(())
    }

    fn flops(&self) -> Dim {
        Dim::from(2) * self.out.dims.numel() * inner_dim(&self.x, self.transpose_x)
    }
}
impl Kernel for Matmul<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let transposed = [self.transpose_x, self.transpose_y];
        multiply(cx, [&self.x, &self.y], transposed, self.alpha, &mut self.out)
    }
}
impl Composition for Matmul<Expr> {
    fn compose(&mut self) {
        let product = product([&self.x, &self.y], [self.transpose_x, self.transpose_y]);
        self.out = if self.alpha == 1.0 { product } else { product * f64::from(self.alpha) };
    }
}
autobwd::samples!(
    Matmul,
    [
        matmul(uniform([2, 3]), uniform([3, 4]), 1.0),
        Matmul { transpose_x: true, ..matmul(uniform([3, 2]), uniform([3, 4]), 0.5) },
        Matmul { transpose_y: true, ..matmul(uniform([5, 2, 3]), uniform([5, 4, 3]), -2.0) },
        Matmul { transpose_x: true, transpose_y: true, ..matmul(uniform([3, 2]), uniform([4, 3]), 0.25) },
        matmul(uniform([5, 2, 3]), uniform([3, 4]), 3.0),
        matmul(uniform([3]), uniform([3]), 2.0),
        matmul(uniform([5, 2, 3]), uniform([3]), 2.0),
        matmul(uniform([2, 0]), uniform([0, 3]), 0.0),
        Matmul { transpose_x: true, ..matmul(uniform([3]), uniform([3, 4]), 1.0) }
            .fails("`X`: matrices are needed when transposed, not"),
        Matmul { transpose_y: true, ..matmul(uniform([2, 3]), uniform([3]), 1.0) }
            .fails("`Y`: matrices are needed when transposed, not"),
        matmul(uniform([2, 3]), uniform([4, 3]), 1.0).fails("`Y`: 3 rows are needed, not"),
        matmul(uniform([]), uniform([3, 4]), 1.0).fails("`X`: a vector or matrices are needed"),
    ]
);

fn matmul(x: Draw, y: Draw, alpha: f32) -> Matmul<Draw> {
    Matmul { x, y, out: out(), transpose_x: false, transpose_y: false, alpha }
}

/// `dx = alpha * dout · yᵀ`, `dy = alpha * xᵀ · dout`, each summed over the broadcast batch dimensions of its factor;
/// the gradient of a factor that is stored transposed is transposed, too.
#[register_op(grad_of = Matmul, grad = Multilinear, inferred, infallible, factors)]
pub struct MatmulGrad<V = Var> {
    pub x: V,
    pub y: V,
    pub dout: V,
    #[output]
    pub dx: Option<V>,
    #[output]
    pub dy: Option<V>,
    pub transpose_x: bool,
    pub transpose_y: bool,
    pub alpha: f32,
}
impl Kernel for MatmulGrad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let (factors, transposed) = ([&self.x, &self.y], [self.transpose_x, self.transpose_y]);
        multiply_grad(cx, factors, transposed, self.alpha, &self.dout, [&mut self.dx, &mut self.dy])
    }
}
