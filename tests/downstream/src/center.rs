//! An operator whose kernel works on arrays.

use autobwd::{
    Buf, Cx, Expr, GradCx, GradRule, Infer, Kernel, Meta, New, Result, Var,
    check::*,
    emit,
    ndarray::{Ix2, Zip},
    op::with_float,
    register_op,
};

// The operator.
/// Subtracts the mean of each column: `out[i, j] = x[i, j] - Σₖ x[k, j] / m`.
#[register_op(grad = CenterGrad)]
pub struct Center<V = Var> {
    /// `[m, n]`.
    #[input]
    pub x: V,
    /// Same shape as `x`.
    #[output]
    pub out: V,
}
impl Infer for Center<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.x.float()?;
        self.x.require(self.x.rank() == 2, || "a matrix is needed".into())?;
        self.out.like(&self.x);
        Ok(())
    }
}
impl Kernel for Center<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        with_float!(self.x, T => {
            let (x, mut out) = (self.x.view::<T, Ix2>()?, self.out.view_mut::<T, Ix2>()?);
            for (x, out) in x.columns().into_iter().zip(out.columns_mut()) {
                let mean = x.sum() / x.len() as T;
                Zip::from(out).and(x).for_each(|out, x| *out = x - mean);
            }
        });
        Ok(())
    }
}
autobwd::samples!(
    Center,
    [
        Center { x: uniform([3, 4]), out: out() },
        Center { x: uniform([0, 2]), out: out() },
        Center { x: uniform([3]), out: out() }.fails("`X`: a matrix is needed"),
    ]
);

/// `dx` is `dout` minus the mean of each column: the same operator.
pub struct CenterGrad;
impl GradRule<Center> for CenterGrad {
    fn emit(fwd: &Center, g: &mut GradCx<'_>) {
        let dout = g.grad(fwd.out);
        if let Some(dx) = g.wanted(fwd.x) {
            g.push(Center { x: dout, out: dx });
        }
    }
}
// End of the operator.

/// Subtracts the mean of each column. Fails unless `x` is a floating-point matrix.
#[track_caller]
pub fn center(x: &Expr) -> Expr {
    emit(Center { x: x.into(), out: New }).out
}
