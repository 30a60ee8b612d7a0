//! Operators of a third party: an elementwise one, whose gradient is derived from its formula, and one with a kernel.

use autobwd::{
    Buf, Cx, Derived, Error, ErrorKind, Expr, Float, Infer, Kernel, Meta, New, NoGrad, Pointwise, Result,
    Var, check::*, emit, register_op,
};

/// `out = x · sigmoid(beta · x)` (Ramachandran et al., 2017).
#[register_op(grad = Derived, pointwise)]
pub struct Swish<V = Var> {
    /// Any shape.
    #[input]
    pub x: V,
    /// Same shape as `x`.
    #[output(inplace = x)]
    pub out: V,
    /// Steepness.
    #[attr(default = 1.0, above = 0.0)]
    pub beta: f32,
}
impl<F: Float> Pointwise for Swish<F> {
    fn eval(&mut self) {
        self.out = self.x * (self.x * F::of(self.beta.into())).sigmoid();
    }
}
autobwd::samples!(
    Swish,
    [
        Swish { x: uniform([2, 3]), out: out(), beta: 1.0 },
        Swish { x: uniform([5]), out: out(), beta: 1.5 },
        Sample::fails(
            Swish { x: uniform([5]), out: out(), beta: -1.0 },
            "attribute `beta`: must be above 0, is -1"
        ),
    ]
);

/// Swish of an expression.
///
/// # Errors
/// A steepness that is not positive.
#[track_caller]
pub fn swish(x: &Expr, beta: f32) -> Result<Expr> {
    Ok(emit(Swish { x: x.into(), out: New, beta })?.out)
}

/// Outer product of two vectors: `out[i, j] = x[i] * y[j]`.
#[register_op(grad = OuterGrad)]
pub struct Outer<V = Var> {
    /// `[m]`.
    #[input]
    pub x: V,
    /// `[n]`.
    #[input]
    pub y: V,
    /// `[m, n]`.
    #[output]
    pub out: V,
}
impl Infer for Outer<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.y.same_dtype(&self.x)?;
        let ([m], [n]) = (&*self.x.dims, &*self.y.dims) else {
            return Err(Error::new(ErrorKind::Shape, "`X` and `Y` are vectors"));
        };
        self.out.set(self.x.dtype, [*m, *n].into_iter().collect::<autobwd::Dims>());
        Ok(())
    }
}
impl Kernel for Outer<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        autobwd::with_float!(self.x, T => {
            let y = self.y.slice::<T>()?;
            if y.is_empty() {
                return Ok(());
            }
            for (row, x) in self.out.slice_mut::<T>()?.chunks_exact_mut(y.len()).zip(self.x.slice::<T>()?) {
                row.iter_mut().zip(y).for_each(|(out, y)| *out = *x * *y);
            }
        });
        Ok(())
    }
}
autobwd::samples!(
    Outer,
    [
        Outer { x: uniform([3]), y: uniform([2]), out: out() },
        Outer { x: uniform([0]), y: uniform([2]), out: out() },
        Sample::fails(Outer { x: uniform([3]), y: uniform([2, 1]), out: out() }, "`X` and `Y` are vectors"),
    ]
);

/// `dx[i] = sum_j dout[i, j] * y[j]`, `dy[j] = sum_i dout[i, j] * x[i]`.
#[register_op(grad = NoGrad)]
pub struct OuterGrad<V = Var> {
    /// `[m]`.
    #[input]
    pub x: V,
    /// `[n]`.
    #[input]
    pub y: V,
    /// `[m, n]`.
    #[input("Out@GRAD")]
    pub dout: V,
    /// `[m]`.
    #[output("X@GRAD")]
    pub dx: Option<V>,
    /// `[n]`.
    #[output("Y@GRAD")]
    pub dy: Option<V>,
}
impl Infer for OuterGrad<Meta> {
    fn infer(&mut self) -> Result<()> {
        if let Some(dx) = &mut self.dx {
            dx.like(&self.x);
        }
        if let Some(dy) = &mut self.dy {
            dy.like(&self.y);
        }
        Ok(())
    }
}
impl Kernel for OuterGrad<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        autobwd::with_float!(self.x, T => {
            let (x, y, dout) = (self.x.slice::<T>()?, self.y.slice::<T>()?, self.dout.slice::<T>()?);
            let row = |i: usize| &dout[i * y.len()..(i + 1) * y.len()];
            if let Some(dx) = &mut self.dx {
                for (i, dx) in dx.slice_mut::<T>()?.iter_mut().enumerate() {
                    *dx = row(i).iter().zip(y).map(|(d, y)| d * y).sum();
                }
            }
            if let Some(dy) = &mut self.dy {
                for (j, dy) in dy.slice_mut::<T>()?.iter_mut().enumerate() {
                    *dy = x.iter().enumerate().map(|(i, x)| row(i)[j] * x).sum();
                }
            }
        });
        Ok(())
    }
}
