//! Matrix products.

use autobwd::{
    Buf, Cx, Dim, Dims, GradCx, GradRule, Infer, Kernel, Mat, Meta, Product, Result, Var, check::*,
    register_op, with_float,
};

use crate::common::{grad_grad_of_product, nth};

/// Matrix product of flattened operands: `out = x · y`.
///
/// The first `x_num_col_dims` dimensions of `x` make the rows of a matrix, the others its columns; `y` likewise.
#[register_op(grad = MulGrad)]
pub struct Mul<V = Var> {
    /// Left factor; its last dimensions multiply to as many as the first of `y`.
    #[input]
    pub x: V,
    /// Right factor.
    #[input]
    pub y: V,
    /// Row dimensions of `x`, then column dimensions of `y`.
    #[output]
    pub out: V,
    /// How many dimensions of `x` make rows.
    #[attr(default = 1, min = 1)]
    pub x_num_col_dims: i32,
    /// How many dimensions of `y` make rows.
    #[attr(default = 1, min = 1)]
    pub y_num_col_dims: i32,
}
impl Infer for Mul<Meta> {
    fn infer(&mut self) -> Result<()> {
        let dims = mul_dims(&self.x, self.x_num_col_dims, &self.y, self.y_num_col_dims)?;
        self.out.set(self.x.dtype, dims);
        Ok(())
    }

    fn flops(&self) -> Dim {
        Dim::from(2) * self.out.dims.numel() * product(&self.x.dims[self.x_num_col_dims as usize..])
    }
}
impl Kernel for Mul<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        with_float!(self.x, T => {
            let x = flat::<T>(&self.x, self.x_num_col_dims)?;
            let y = flat::<T>(&self.y, self.y_num_col_dims)?;
            cx.product(self.out.slice_mut()?, false, x, y)
        })
    }
}
autobwd::samples!(
    Mul,
    [
        Mul { x: uniform([2, 3]), y: uniform([3, 4]), out: out(), x_num_col_dims: 1, y_num_col_dims: 1 },
        Mul { x: uniform([2, 4, 3]), y: uniform([3, 5]), out: out(), x_num_col_dims: 2, y_num_col_dims: 1 },
        Mul {
            x: uniform([5, 3, 2]),
            y: uniform([2, 3, 4, 1]),
            out: out(),
            x_num_col_dims: 1,
            y_num_col_dims: 2
        },
        Mul { x: uniform([0, 3]), y: uniform([3, 2]), out: out(), x_num_col_dims: 1, y_num_col_dims: 1 },
        Mul { x: uniform([2, 0]), y: uniform([0, 3]), out: out(), x_num_col_dims: 1, y_num_col_dims: 1 },
        Sample::fails(
            Mul { x: uniform([2, 3]), y: uniform([4, 5]), out: out(), x_num_col_dims: 1, y_num_col_dims: 1 },
            "`Y`: a matrix of 3 rows is needed, not",
        ),
        Sample::fails(
            Mul { x: uniform([2, 3]), y: uniform([3, 4]), out: out(), x_num_col_dims: 2, y_num_col_dims: 1 },
            "`X`: more than 2 dimensions are needed",
        ),
    ]
);

/// `dx = dout · yᵀ`, `dy = xᵀ · dout`.
#[register_op(grad = MulGradGrad)]
pub struct MulGrad<V = Var> {
    /// Left factor.
    #[input]
    pub x: V,
    /// Right factor.
    #[input]
    pub y: V,
    /// Gradient of the product.
    #[input("Out@GRAD")]
    pub dout: V,
    /// Same shape as `x`.
    #[output("X@GRAD")]
    pub dx: Option<V>,
    /// Same shape as `y`.
    #[output("Y@GRAD")]
    pub dy: Option<V>,
    /// As in `mul`.
    #[attr(default = 1, min = 1)]
    pub x_num_col_dims: i32,
    /// As in `mul`.
    #[attr(default = 1, min = 1)]
    pub y_num_col_dims: i32,
}
impl Infer for MulGrad<Meta> {
    fn infer(&mut self) -> Result<()> {
        let dims = mul_dims(&self.x, self.x_num_col_dims, &self.y, self.y_num_col_dims)?;
        infer_grads(dims, &self.x, &self.y, &self.dout, &mut self.dx, &mut self.dy)
    }

    fn flops(&self) -> Dim {
        let one =
            Dim::from(2) * self.dout.dims.numel() * product(&self.x.dims[self.x_num_col_dims as usize..]);
        grads_flops(one, &self.dx, &self.dy)
    }
}
impl Kernel for MulGrad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        with_float!(self.dout, T => {
            let x = flat::<T>(&self.x, self.x_num_col_dims)?;
            let y = flat::<T>(&self.y, self.y_num_col_dims)?;
            let dout = Mat { data: self.dout.slice::<T>()?, rows: x.rows, cols: y.cols, transposed: false };
            if let Some(dx) = &mut self.dx {
                cx.product(dx.slice_mut()?, false, dout, y.t())?;
            }
            if let Some(dy) = &mut self.dy {
                cx.product(dy.slice_mut()?, false, x.t(), dout)?;
            }
            Ok(())
        })
    }
}

/// `ddout = ddx · y + x · ddy`, `dx = dout · ddyᵀ`, `dy = ddxᵀ · dout`: products and their gradients again.
pub struct MulGradGrad;
impl GradRule<MulGrad> for MulGradGrad {
    fn emit(fwd: &MulGrad, g: &mut GradCx<'_>) {
        let MulGrad { x, y, dout, x_num_col_dims, y_num_col_dims, .. } = *fwd;
        let product = |x, y, out| Mul { x, y, out, x_num_col_dims, y_num_col_dims };
        let grads = |x, y, dx, dy| MulGrad { x, y, dout, dx, dy, x_num_col_dims, y_num_col_dims };
        grad_grad_of_product(g, [x, y, dout], [fwd.dx, fwd.dy], product, grads);
    }
}

/// Matrix product `out = x · y` over the last two dimensions.
///
/// The dimensions before the last two count products and broadcast against each other. A vector on the left is a row,
/// on the right a column, without transposition, and has no dimension in `out`.
#[register_op(grad = MatmulV2Grad)]
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
        let dims = matmul_dims(&self.x, self.trans_x, &self.y, self.trans_y)?;
        self.out.set(self.x.dtype, dims);
        Ok(())
    }

    fn flops(&self) -> Dim {
        Dim::from(2) * self.out.dims.numel() * inner_dim(&self.x, self.trans_x)
    }
}
impl Kernel for MatmulV2<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        with_float!(self.x, T => {
            let all = Products::<T>::new(&self.x, self.trans_x, &self.y, self.trans_y)?;
            let (rows, cols) = all.out_shape();
            let out = self.out.slice_mut()?;
            // Products without elements leave nothing to cut.
            for (i, out) in out.chunks_mut((rows * cols).max(1)).enumerate() {
                let (x, y) = all.at(i);
                cx.product(out, false, all.x.matrix(x), all.y.matrix(y))?;
            }
            Ok(())
        })
    }
}
autobwd::samples!(
    MatmulV2,
    [
        MatmulV2 { x: uniform([2, 3]), y: uniform([3, 4]), out: out(), trans_x: false, trans_y: false },
        MatmulV2 { x: uniform([3, 2]), y: uniform([3, 4]), out: out(), trans_x: true, trans_y: false },
        MatmulV2 { x: uniform([2, 3]), y: uniform([4, 3]), out: out(), trans_x: false, trans_y: true },
        MatmulV2 { x: uniform([3, 2]), y: uniform([4, 3]), out: out(), trans_x: true, trans_y: true },
        MatmulV2 { x: uniform([5, 2, 3]), y: uniform([5, 3, 4]), out: out(), trans_x: false, trans_y: false },
        MatmulV2 { x: uniform([5, 3, 2]), y: uniform([5, 4, 3]), out: out(), trans_x: true, trans_y: true },
        MatmulV2 { x: uniform([5, 2, 3]), y: uniform([3, 4]), out: out(), trans_x: false, trans_y: false },
        MatmulV2 { x: uniform([5, 2, 3]), y: uniform([1, 4, 3]), out: out(), trans_x: false, trans_y: true },
        MatmulV2 { x: uniform([5, 3, 2]), y: uniform([3, 4]), out: out(), trans_x: true, trans_y: false },
        MatmulV2 { x: uniform([2, 3]), y: uniform([5, 3, 4]), out: out(), trans_x: false, trans_y: false },
        MatmulV2 {
            x: uniform([5, 1, 2, 3]),
            y: uniform([6, 3, 4]),
            out: out(),
            trans_x: false,
            trans_y: false
        },
        MatmulV2 { x: uniform([3]), y: uniform([3]), out: out(), trans_x: false, trans_y: true },
        MatmulV2 { x: uniform([3]), y: uniform([5, 3, 4]), out: out(), trans_x: true, trans_y: false },
        MatmulV2 { x: uniform([5, 2, 3]), y: uniform([3]), out: out(), trans_x: false, trans_y: false },
        MatmulV2 { x: uniform([2, 0]), y: uniform([0, 3]), out: out(), trans_x: false, trans_y: false },
        MatmulV2 { x: uniform([0, 2, 3]), y: uniform([1, 3, 4]), out: out(), trans_x: false, trans_y: false },
        Sample::fails(
            MatmulV2 { x: uniform([2, 3]), y: uniform([3, 4]), out: out(), trans_x: false, trans_y: true },
            "`Y`: 3 rows are needed when transposed, not",
        ),
        Sample::fails(
            MatmulV2 {
                x: uniform([5, 2, 3]),
                y: uniform([6, 3, 4]),
                out: out(),
                trans_x: false,
                trans_y: false
            },
            "`Y`: matrices that broadcast with [5, 2, 3] of `X` are needed",
        ),
        Sample::fails(
            MatmulV2 { x: uniform([]), y: uniform([3, 4]), out: out(), trans_x: false, trans_y: false },
            "`X`: a vector or matrices are needed",
        ),
    ]
);

/// `dx = dout · yᵀ`, `dy = xᵀ · dout`, summed over the products that a factor takes part in; a factor that is stored
/// transposed has a gradient that is.
#[register_op(grad = MatmulV2GradGrad)]
pub struct MatmulV2Grad<V = Var> {
    /// Left factors.
    #[input]
    pub x: V,
    /// Right factors.
    #[input]
    pub y: V,
    /// Gradient of the products.
    #[input("Out@GRAD")]
    pub dout: V,
    /// Same shape as `x`.
    #[output("X@GRAD")]
    pub dx: Option<V>,
    /// Same shape as `y`.
    #[output("Y@GRAD")]
    pub dy: Option<V>,
    /// As in `matmul_v2`.
    #[attr(default = false)]
    pub trans_x: bool,
    /// As in `matmul_v2`.
    #[attr(default = false)]
    pub trans_y: bool,
}
impl Infer for MatmulV2Grad<Meta> {
    fn infer(&mut self) -> Result<()> {
        let dims = matmul_dims(&self.x, self.trans_x, &self.y, self.trans_y)?;
        infer_grads(dims, &self.x, &self.y, &self.dout, &mut self.dx, &mut self.dy)
    }

    fn flops(&self) -> Dim {
        let one = Dim::from(2) * self.dout.dims.numel() * inner_dim(&self.x, self.trans_x);
        grads_flops(one, &self.dx, &self.dy)
    }
}
impl Kernel for MatmulV2Grad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        with_float!(self.dout, T => {
            let all = Products::<T>::new(&self.x, self.trans_x, &self.y, self.trans_y)?;
            let (rows, cols) = all.out_shape();
            let dout = self.dout.slice::<T>()?;
            let dout = |i| Mat { data: nth(dout, i, rows * cols), rows, cols, transposed: false };
            if let Some(dx) = &mut self.dx {
                let dx = dx.slice_mut()?;
                let add = all.start_sums(dx, &all.x);
                for i in 0..all.count() {
                    let (x, y) = all.at(i);
                    let (dout, y) = (dout(i), all.y.matrix(y));
                    let (left, right) = if all.x.transposed { (y, dout.t()) } else { (dout, y.t()) };
                    cx.product(nth_mut(dx, x, all.x.len()), add, left, right)?;
                }
            }
            if let Some(dy) = &mut self.dy {
                let dy = dy.slice_mut()?;
                let add = all.start_sums(dy, &all.y);
                for i in 0..all.count() {
                    let (x, y) = all.at(i);
                    let (dout, x) = (dout(i), all.x.matrix(x));
                    let (left, right) = if all.y.transposed { (dout.t(), x) } else { (x.t(), dout) };
                    cx.product(nth_mut(dy, y, all.y.len()), add, left, right)?;
                }
            }
            Ok(())
        })
    }
}

/// `ddout = ddx · y + x · ddy`, `dx = dout · ddyᵀ`, `dy = ddxᵀ · dout`: products and their gradients again, whatever is
/// broadcast or transposed, since products are linear in each factor.
pub struct MatmulV2GradGrad;
impl GradRule<MatmulV2Grad> for MatmulV2GradGrad {
    fn emit(fwd: &MatmulV2Grad, g: &mut GradCx<'_>) {
        let MatmulV2Grad { x, y, dout, trans_x, trans_y, .. } = *fwd;
        let product = |x, y, out| MatmulV2 { x, y, out, trans_x, trans_y };
        let grads = |x, y, dx, dy| MatmulV2Grad { x, y, dout, dx, dy, trans_x, trans_y };
        grad_grad_of_product(g, [x, y, dout], [fwd.dx, fwd.dy], product, grads);
    }
}

/// Dimensions of the product of flattened operands.
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

/// What both gradient operators say about shapes.
fn infer_grads(
    dims: Dims,
    x: &Meta,
    y: &Meta,
    dout: &Meta,
    dx: &mut Option<Meta>,
    dy: &mut Option<Meta>,
) -> Result<()> {
    dout.same_dtype(x)?;
    if !dout.dims.agrees(&dims) {
        return Err(dout.wrong(&format!("the shape of the product, {dims}, is needed")));
    }
    if let Some(dx) = dx {
        dx.like(x);
    }
    if let Some(dy) = dy {
        dy.like(y);
    }
    Ok(())
}

/// Each gradient is a product of as many terms.
fn grads_flops(one: Dim, dx: &Option<Meta>, dy: &Option<Meta>) -> Dim {
    one * Dim::from(dx.iter().chain(dy).count())
}

fn flat<'a, T: Product>(x: &'a Buf<'_>, rows: i32) -> Result<Mat<'a, T>> {
    let (rows, cols) = x.dims().split_at(rows as usize);
    Ok(Mat { data: x.slice()?, rows: rows.iter().product(), cols: cols.iter().product(), transposed: false })
}

/// Dimensions of the products over the last two dimensions.
fn matmul_dims(x: &Meta, trans_x: bool, y: &Meta, trans_y: bool) -> Result<Dims> {
    x.float()?;
    y.same_dtype(x)?;
    let (x_batch, m, k) = match &*x.dims {
        [] => return Err(x.wrong("a vector or matrices are needed")),
        [k] => (&[][..], None, *k),
        [batch @ .., rows, cols] if trans_x => (batch, Some(*cols), *rows),
        [batch @ .., rows, cols] => (batch, Some(*rows), *cols),
    };
    let (y_batch, k2, n) = match &*y.dims {
        [] => return Err(y.wrong("a vector or matrices are needed")),
        [k] => (&[][..], *k, None),
        [batch @ .., rows, cols] if trans_y => (batch, *cols, Some(*rows)),
        [batch @ .., rows, cols] => (batch, *rows, Some(*cols)),
    };
    if !k.agrees(k2) {
        let when = if trans_y && n.is_some() { " when transposed" } else { "" };
        return Err(y.wrong(&format!("{k} rows are needed{when}")));
    }
    let rank = x_batch.len().max(y_batch.len());
    let dim =
        |batch: &[Dim], i: usize| (i + batch.len()).checked_sub(rank).map_or(Dim::from(1), |i| batch[i]);
    let batch = (0..rank).map(|i| match (dim(x_batch, i), dim(y_batch, i)) {
        (a, b) if a == 1 => Ok(b),
        (a, b) if b == 1 => Ok(a),
        (a, b) if a.agrees(b) => Ok(a.or(b)),
        _ => Err(y.wrong(&format!("matrices that broadcast with {} of `{}` are needed", x.dims, x.slot()))),
    });
    batch.chain(m.map(Ok)).chain(n.map(Ok)).collect()
}

/// How many terms the sums of a product over the last two dimensions have.
fn inner_dim(x: &Meta, trans_x: bool) -> Dim {
    match &*x.dims {
        [.., rows, _] if trans_x => *rows,
        [.., last] => *last,
        [] => Dim::UNKNOWN,
    }
}

/// Both sides of broadcast products.
struct Products<'a, T> {
    x: Factor<'a, T>,
    y: Factor<'a, T>,
}

/// The matrices of one side, one behind the other.
struct Factor<'a, T> {
    data: &'a [T],
    batch: &'a [usize],
    rows: usize,
    cols: usize,
    transposed: bool,
}

impl<'a, T: Product> Products<'a, T> {
    fn new(x: &'a Buf<'_>, trans_x: bool, y: &'a Buf<'_>, trans_y: bool) -> Result<Products<'a, T>> {
        let (data, vector) = (x.slice()?, x.dims().len() < 2);
        let mut x = match x.dims() {
            [batch @ .., rows, cols] => Factor { data, batch, rows: *rows, cols: *cols, transposed: trans_x },
            _ => Factor { data, batch: &[], rows: 1, cols: data.len(), transposed: false },
        };
        let data = y.slice()?;
        let mut y = match y.dims() {
            [batch @ .., rows, cols] => Factor { data, batch, rows: *rows, cols: *cols, transposed: trans_y },
            _ => Factor { data, batch: &[], rows: data.len(), cols: 1, transposed: false },
        };
        // One matrix on the right and rows in order on the left: all of it is one product.
        if !vector && !x.transposed && y.count() == 1 {
            x.rows *= x.count();
            (x.batch, y.batch) = (&[], &[]);
        }
        Ok(Products { x, y })
    }

    /// Rows and columns of one product.
    fn out_shape(&self) -> (usize, usize) {
        let (x, y) = (&self.x, &self.y);
        (if x.transposed { x.cols } else { x.rows }, if y.transposed { y.rows } else { y.cols })
    }

    /// Dimensions that count products, the last first, on both sides.
    fn batch(&self) -> impl Iterator<Item = (usize, usize)> {
        let rank = self.x.batch.len().max(self.y.batch.len());
        let dim = |batch: &[usize], i: usize| batch.len().checked_sub(i + 1).map_or(1, |i| batch[i]);
        (0..rank).map(move |i| (dim(self.x.batch, i), dim(self.y.batch, i)))
    }

    fn count(&self) -> usize {
        self.batch().map(|(x, y)| if x == 1 { y } else { x }).product()
    }

    /// Which matrices make the `i`-th product.
    fn at(&self, mut i: usize) -> (usize, usize) {
        let (mut at, mut stride) = ((0, 0), (1, 1));
        for (x, y) in self.batch() {
            let n = if x == 1 { y } else { x };
            if x != 1 {
                at.0 += i % n * stride.0;
            }
            if y != 1 {
                at.1 += i % n * stride.1;
            }
            i /= n;
            stride = (stride.0 * x, stride.1 * y);
        }
        at
    }

    /// Zeros gradients that several products add to, and says whether these are such.
    fn start_sums(&self, grads: &mut [T], of: &Factor<'_, T>) -> bool {
        let shared = of.count() != self.count();
        if shared {
            grads.fill(T::ZERO);
        }
        shared
    }
}
impl<'a, T> Factor<'a, T> {
    fn len(&self) -> usize {
        self.rows * self.cols
    }

    fn count(&self) -> usize {
        self.batch.iter().product()
    }

    /// The `i`-th matrix.
    fn matrix(&self, i: usize) -> Mat<'a, T> {
        let Factor { rows, cols, transposed, .. } = *self;
        Mat { data: nth(self.data, i, self.len()), rows, cols, transposed }
    }
}

fn nth_mut<T>(all: &mut [T], i: usize, len: usize) -> &mut [T] {
    &mut all[i * len..][..len]
}
