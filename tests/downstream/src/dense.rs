//! An operator with a shape rule, a kernel and a gradient operator.

use autobwd::{
    Buf, Cx, Dims, Expr, Infer, Kernel, Meta, New, NoGrad, Result, Var, check::*, emit, op::with_float,
    register_op,
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
        let ([m, k], [rows, n]) = (self.x.unpack()?, self.w.unpack()?);
        self.w.require(rows.agrees(k), || format!("{k} rows are needed"))?;
        self.out.set(self.x.dtype, Dims::from_iter([m, n]));
        Ok(())
    }
}
impl Kernel for Dense<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        with_float!(self.x, T => cx.product(self.out.slice_mut::<T>()?, false, self.x.mat::<T>()?, self.w.mat::<T>()?))
    }
}
autobwd::samples!(
    Dense,
    [
        Dense { x: uniform([2, 3]), w: uniform([3, 4]), out: out() },
        Dense { x: uniform([2, 3]), w: uniform([4, 3]), out: out() }.fails("`W`: 3 rows are needed"),
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
    #[input("Out@GRAD")]
    pub dout: V,
    #[output("X@GRAD", like = x)]
    pub dx: Option<V>,
    #[output("W@GRAD", like = w)]
    pub dw: Option<V>,
}
impl Kernel for DenseGrad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        with_float!(self.dout, T => {
            let (x, w, dout) = (self.x.mat::<T>()?, self.w.mat::<T>()?, self.dout.mat::<T>()?);
            self.dx.iter_mut().try_for_each(|dx| cx.product(dx.slice_mut()?, false, dout, w.t()))?;
            self.dw.iter_mut().try_for_each(|dw| cx.product(dw.slice_mut()?, false, x.t(), dout))
        })
    }
}
// End of the operator.

/// Matrix product of two expressions. Fails unless both are matrices of matching shapes.
#[track_caller]
pub fn dense(x: &Expr, w: &Expr) -> Expr {
    emit(Dense { x: x.into(), w: w.into(), out: New }).out
}
