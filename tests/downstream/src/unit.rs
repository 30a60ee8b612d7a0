//! Operators without kernels: their compositions run, their gradients are rules of their own.

use autobwd::{
    Composed, Composition, Expr, GradCx, Infer, Meta, New, Result, Var, check::*, emit, operators::Assign,
    register_op,
};
use autobwd_ops::Math;

// The operator.
/// Rows of length 1: `out[i, j] = x[i, j] / √(Σₖ x[i, k]² + epsilon)`.
#[register_op(grad = UnitGrad, composed)]
pub struct Unit<V = Var> {
    /// `[m, n]`.
    #[input]
    pub x: V,
    /// Same shape as `x`.
    #[output]
    pub out: V,
    /// Added to the squared length.
    #[attr(default = 1e-6, min = 0.0)]
    pub epsilon: f64,
}
impl Infer for Unit<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.x.float()?;
        self.x.require(self.x.rank() == 2, || "a matrix is needed".into())?;
        self.out.like(&self.x);
        Ok(())
    }
}
impl Composition for Unit<Expr> {
    fn compose(&mut self) {
        self.out = &self.x / lengths(&self.x, self.epsilon);
    }
}
autobwd::samples!(
    Unit,
    [
        Unit { x: uniform([2, 3]), out: out(), epsilon: 0.01 },
        Unit { x: positive([3, 1]), out: out(), epsilon: 0.0 },
        Unit { x: uniform([3]), out: out(), epsilon: 0.0 }.fails("`X`: a matrix is needed"),
        Unit { x: uniform([3, 2]), out: out(), epsilon: -1.0 }.fails("must be at least 0, is -1"),
    ]
);

/// `dx = (dout - out · Σⱼ dout[·, j] · out[·, j]) / √(Σₖ x[·, k]² + epsilon)`.
#[register_op(grad_of = Unit, grad = Composed, composed, inferred)]
pub struct UnitGrad<V = Var> {
    pub x: V,
    pub out: V,
    pub dout: V,
    #[output]
    pub dx: V,
    pub epsilon: f64,
}
impl Composition for UnitGrad<Expr> {
    fn compose(&mut self) {
        let along = (&self.dout * &self.out).sum(&[1]).unsqueeze(&[1]);
        self.dx = (&self.dout - &self.out * along) / lengths(&self.x, self.epsilon);
    }
}
// End of the operator.

fn lengths(x: &Expr, epsilon: f64) -> Expr {
    (x.square().sum(&[1]) + epsilon).sqrt().unsqueeze(&[1])
}

/// The rows of a matrix divided by their lengths. Fails unless `x` is a floating-point matrix.
#[track_caller]
pub fn unit(x: &Expr, epsilon: f64) -> Expr {
    emit(Unit { x: x.into(), out: New, epsilon }).out
}

/// Multiples of a step: `out = round(x / step) · step`. The gradient passes straight through: `dx = dout`.
#[register_op(grad = straight_through, composed)]
pub struct Quantize<V = Var> {
    /// Any shape.
    #[input]
    pub x: V,
    /// Same shape as `x`.
    #[output]
    pub out: V,
    /// The distance of neighbours.
    #[attr(default = 1.0, above = 0.0)]
    pub step: f64,
}
impl Infer for Quantize<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.x.float()?;
        self.out.like(&self.x);
        Ok(())
    }
}
impl Composition for Quantize<Expr> {
    fn compose(&mut self) {
        self.out = (&self.x / self.step).round() * self.step;
    }
}
autobwd::samples!(
    Quantize,
    [
        Quantize { x: given([4], [0.2, 1.3, -0.8, 2.6]), out: out(), step: 1.0 }
            .discontinuous("the straight-through estimator"),
        Quantize { x: given([2, 2], [0.2, 0.3, -0.1, 0.6]), out: out(), step: 0.25 }
            .discontinuous("the straight-through estimator"),
        Quantize { x: uniform([2]), out: out(), step: 0.0 }.fails("must be above 0, is 0"),
    ]
);

fn straight_through(fwd: &Quantize, g: &mut GradCx<'_>) {
    let dout = g.grad(fwd.out);
    if let Some(out) = g.wanted(fwd.x) {
        g.push(Assign { x: dout, out });
    }
}

/// Rounds to multiples of `step`, with a gradient that passes straight through.
#[track_caller]
pub fn quantize(x: &Expr, step: f64) -> Expr {
    emit(Quantize { x: x.into(), out: New, step }).out
}
