//! An operator with a shape rule, a kernel and a gradient operator.

use autobwd::{
    Buf, Cx, Dims, Expr, Infer, Kernel, Mat, Meta, New, NoGrad, Product, Result, Var, check::*, emit,
    register_op, with_float,
};

// The operator.
/// Matrix product: `out = x · w`.
#[register_op(grad = DenseGrad)]
pub struct Dense<V = Var> {
    /// `[m, k]`.
    #[input]
    pub x: V,
    /// `[k, n]`.
    #[input]
    pub w: V,
    /// `[m, n]`.
    #[output]
    pub out: V,
}
impl Infer for Dense<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.x.float()?;
        self.w.same_dtype(&self.x)?;
        match (&*self.x.dims, &*self.w.dims) {
            (&[m, k], &[rows, n]) if k.agrees(rows) => self.out.set(self.x.dtype, Dims::from_iter([m, n])),
            (_, _) => return Err(self.w.wrong(&format!("a factor for {} of `X` is needed", self.x.dims))),
        }
        Ok(())
    }
}
impl Kernel for Dense<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        with_float!(self.x, T => cx.product(self.out.slice_mut::<T>()?, false, mat(&self.x)?, mat(&self.w)?))
    }
}
autobwd::samples!(
    Dense,
    [
        Dense { x: uniform([2, 3]), w: uniform([3, 4]), out: out() },
        Sample::fails(Dense { x: uniform([2, 3]), w: uniform([4, 3]), out: out() }, "a factor for [2, 3]"),
    ]
);

/// `dx = dout · wᵀ`, `dw = xᵀ · dout`.
#[register_op(grad = NoGrad)]
pub struct DenseGrad<V = Var> {
    /// `[m, k]`.
    #[input]
    pub x: V,
    /// `[k, n]`.
    #[input]
    pub w: V,
    /// `[m, n]`.
    #[input("Out@GRAD")]
    pub dout: V,
    /// `[m, k]`.
    #[output("X@GRAD")]
    pub dx: Option<V>,
    /// `[k, n]`.
    #[output("W@GRAD")]
    pub dw: Option<V>,
}
impl Infer for DenseGrad<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.dx.iter_mut().for_each(|dx| dx.like(&self.x));
        self.dw.iter_mut().for_each(|dw| dw.like(&self.w));
        Ok(())
    }
}
impl Kernel for DenseGrad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        with_float!(self.dout, T => {
            let (x, w, dout) = (mat::<T>(&self.x)?, mat(&self.w)?, mat(&self.dout)?);
            let (xt, wt) = (Mat { transposed: true, ..x }, Mat { transposed: true, ..w });
            self.dx.iter_mut().try_for_each(|dx| cx.product(dx.slice_mut()?, false, dout, wt))?;
            self.dw.iter_mut().try_for_each(|dw| cx.product(dw.slice_mut()?, false, xt, dout))
        })
    }
}

fn mat<'a, T: Product>(x: &'a Buf<'_>) -> Result<Mat<'a, T>> {
    let &[rows, cols] = x.dims() else { return Err(x.wrong("a matrix is needed")) };
    Ok(Mat { data: x.slice()?, rows, cols, transposed: false })
}
// End of the operator.

/// Matrix product of two expressions.
///
/// # Errors
/// Anything but matrices that fit each other.
#[track_caller]
pub fn dense(x: &Expr, w: &Expr) -> Result<Expr> {
    Ok(emit(Dense { x: x.into(), w: w.into(), out: New })?.out)
}
