//! Matrix product of tensors flattened to matrices.

use autobwd::{
    Buf, Composition, Cx, Dims, Expr, Infer, Kernel, Meta, Multilinear, Result, Var,
    check::*,
    op::{Factor, Mat, with_factor},
    register_op,
    tensor::{Dim, OptionalBuf},
};

use crate::{Math, math::all_sizes};

/// Matrix product of flattened operands: `out = x · y`.
///
/// The first `x_num_col_dims` dimensions of `x` are the rows of its matrix, the others the columns; `y` likewise.
#[register_op(grad = MulGrad, infallible, factors)]
pub struct Mul<V = Var> {
    /// Left factor; the size of its columns equals the size of the rows of `y`.
    #[input]
    pub x: V,
    /// Right factor.
    #[input]
    pub y: V,
    /// Row dimensions of `x`, then column dimensions of `y`.
    #[output]
    pub out: V,
    /// Number of dimensions of `x` that make rows.
    #[attr(default = 1, min = 1)]
    pub x_num_col_dims: i32,
    /// Number of dimensions of `y` that make rows.
    #[attr(default = 1, min = 1)]
    pub y_num_col_dims: i32,
}
impl Infer for Mul<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.out.set(self.x.dtype, mul_dims(&self.x, self.x_num_col_dims, &self.y, self.y_num_col_dims)?);
        Ok(())
    }

    fn flops(&self) -> Dim {
        Dim::from(2) * self.out.dims.numel() * product(&self.x.dims[self.x_num_col_dims as usize..])
    }
}
impl Kernel for Mul<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        with_factor!(self.x, T => {
            let x = flat::<T>(&self.x, self.x_num_col_dims)?;
            let y = flat::<T>(&self.y, self.y_num_col_dims)?;
            cx.product(self.out.slice_mut()?, false, x, y)
        })
    }
}
impl Composition for Mul<Expr> {
    fn compose(&mut self) {
        let (rows, inner) = (self.x_num_col_dims, self.y_num_col_dims);
        let product = matrix(&self.x, rows).matmul(&matrix(&self.y, inner));
        let (x, y) = (all_sizes(&self.x), all_sizes(&self.y));
        let dims = [&x[..rows as usize], &y[inner as usize..]].concat();
        self.out = if dims.len() == 2 { product } else { product.reshape_to(&dims) };
    }
}

/// A tensor as a matrix, whose rows are the first dimensions.
fn matrix(x: &Expr, rows: i32) -> Expr {
    let x = if rows > 1 { x.flatten(0, rows - 1) } else { x.clone() };
    if x.dims().len() > 2 { x.flatten(1, -1) } else { x }
}
autobwd::samples!(
    Mul,
    [
        mul(uniform([2, 3]), uniform([3, 4]), 1),
        mul(uniform([2, 4, 3]), uniform([3, 5]), 2),
        Mul { y_num_col_dims: 2, ..mul(uniform([5, 3, 2]), uniform([2, 3, 4, 1]), 1) },
        mul(uniform([0, 3]), uniform([3, 2]), 1),
        mul(uniform([2, 0]), uniform([0, 3]), 1),
        mul(uniform([2, 3]), uniform([4, 5]), 1).fails("`Y`: a matrix of 3 rows is needed, not"),
        mul(uniform([2, 3]), uniform([3, 4]), 2).fails("`X`: more than 2 dimensions are needed"),
    ]
);

fn mul(x: Draw, y: Draw, x_num_col_dims: i32) -> Mul<Draw> {
    Mul { x, y, out: out(), x_num_col_dims, y_num_col_dims: 1 }
}

/// `dx = dout · yᵀ`, `dy = xᵀ · dout`.
#[register_op(grad_of = Mul, grad = Multilinear, inferred, infallible, factors)]
pub struct MulGrad<V = Var> {
    pub x: V,
    pub y: V,
    pub dout: V,
    #[output]
    pub dx: Option<V>,
    #[output]
    pub dy: Option<V>,
    pub x_num_col_dims: i32,
    pub y_num_col_dims: i32,
}
impl Kernel for MulGrad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        with_factor!(self.dout, T => {
            let x = flat::<T>(&self.x, self.x_num_col_dims)?;
            let y = flat::<T>(&self.y, self.y_num_col_dims)?;
            let dout = Mat { data: self.dout.slice::<T>()?, rows: x.rows, cols: y.cols, transposed: false };
            if let Some(dx) = self.dx.slice_mut()? {
                cx.product(dx, false, dout, y.t())?;
            }
            if let Some(dy) = self.dy.slice_mut()? {
                cx.product(dy, false, x.t(), dout)?;
            }
            Ok(())
        })
    }
}

/// Infers the dimensions of the product of flattened operands.
fn mul_dims(x: &Meta, x_rows: i32, y: &Meta, y_rows: i32) -> Result<Dims> {
    x.float()?;
    y.same_dtype(x)?;
    let (x_rows, y_rows) = (cut_at(x, x_rows)?, cut_at(y, y_rows)?);
    let inner = product(&x.dims[x_rows..]);
    if !inner.agrees(product(&y.dims[..y_rows])) {
        return Err(y.wrong(&format!("a matrix of {inner} rows is needed")));
    }
    Ok(x.dims[..x_rows].iter().chain(&y.dims[y_rows..]).copied().collect())
}

fn product(dims: &[Dim]) -> Dim {
    dims.iter().fold(Dim::from(1), |n, d| n * *d)
}

fn cut_at(x: &Meta, rows: i32) -> Result<usize> {
    let at = usize::try_from(rows).ok().filter(|at| *at < x.rank());
    at.ok_or_else(|| x.wrong(&format!("more than {rows} dimensions are needed")))
}

fn flat<'a, T: Factor>(x: &'a Buf<'_>, rows: i32) -> Result<Mat<'a, T>> {
    let (rows, cols) = x.dims().split_at(rows as usize);
    Ok(Mat { data: x.slice()?, rows: rows.iter().product(), cols: cols.iter().product(), transposed: false })
}
