//! Elementwise functions of one variable, each defined by a formula.
//!
//! Their double gradients are composed of these functions and of elementwise products, so every order exists.

use autobwd::{
    DType, Derived, GradCx, GradRule, Result,
    check::*,
    op::{Integer, PointwiseInteger, SelfAdjoint},
};

pub use autobwd::operators::{Scale, ScaleGrad};

use crate::{
    elementwise::{ElementwiseDivGrad, ElementwiseMul, ElementwiseMulGrad},
    unary::unary_formula,
};

unary_formula!(
    /// ReLU: `out = max(x, 0)`; NaN stays NaN.
    ///
    /// At 0, the gradient is 0.
    Relu(grad = ReluGrad), |x| F::select(F::from(0.0).gt(x), F::from(0.0), x),
    samples [away_from(0.0, [2, 3]), given([3], [-1.0, 0.5, 2.0]), uniform([0, 2])],
    /// `dx = dout` where `out > 0`, else 0.
    ReluGrad(grad = SelfAdjoint), |out, dout| F::select(out.gt(F::from(0.0)), dout, F::from(0.0))
);

unary_formula!(
    /// Hyperbolic tangent: `out = tanh(x)`.
    Tanh(grad = TanhGrad), |x| x.tanh(),
    samples [between(-3.0, 3.0, [2, 3])],
    /// `dx = dout * (1 - out²)`.
    TanhGrad(grad = Derived), |out, dout| dout * (F::from(1.0) - out * out)
);

unary_formula!(
    /// Logistic sigmoid: `out = 1 / (1 + exp(-x))`.
    Sigmoid(grad = SigmoidGrad), |x| x.sigmoid(),
    samples [between(-3.0, 3.0, [2, 3])],
    /// `dx = dout * out * (1 - out)`.
    SigmoidGrad(grad = SigmoidGradGrad), |out, dout| dout * out * (F::from(1.0) - out)
);

/// `ddout = ddx * out * (1 - out)`; the gradient of `out` is `(1 - 2 * out) * dout * ddx`.
#[derive(Debug)]
pub struct SigmoidGradGrad;
impl GradRule<SigmoidGrad> for SigmoidGradGrad {
    fn emit(fwd: &SigmoidGrad, g: &mut GradCx<'_>) {
        let ddx = g.grad(fwd.dx);
        if let Some(ddout) = g.wanted(fwd.dout) {
            g.push(SigmoidGrad { out: fwd.out, dout: ddx, dx: ddout });
        }
        if let Some(d_out) = g.wanted(fwd.out) {
            let (line, product) = (g.fresh("line"), g.fresh("product"));
            g.push(Scale { x: fwd.out, out: line, scale: -2.0, bias: 1.0, bias_after_scale: true });
            g.push(ElementwiseMul { x: fwd.dout, y: ddx, out: product, axis: -1 });
            g.push(ElementwiseMul { x: line, y: product, out: d_out, axis: -1 });
        }
    }
}

unary_formula!(
    /// Exponential function: `out = exp(x)`.
    Exp(grad = ExpGrad), |x| x.exp(),
    samples [between(-2.0, 2.0, [2, 3])],
    /// `dx = dout * out`.
    ExpGrad(grad = ExpGradGrad), |out, dout| dout * out
);

/// The gradient of the product `dout * out`.
#[derive(Debug)]
pub struct ExpGradGrad;
impl GradRule<ExpGrad> for ExpGradGrad {
    fn emit(fwd: &ExpGrad, g: &mut GradCx<'_>) {
        let (dx, dy) = (g.wanted(fwd.dout), g.wanted(fwd.out));
        g.push(ElementwiseMulGrad { x: fwd.dout, y: fwd.out, dout: g.grad(fwd.dx), dx, dy, axis: -1 });
    }
}

unary_formula!(
    /// Natural logarithm: `out = ln(x)`.
    Log(grad = LogGrad), |x| x.log(),
    samples [positive([2, 3])],
    /// `dx = dout / x`.
    LogGrad(grad = LogGradGrad), |x, dout| dout / x
);

/// The gradient of the quotient `dout / x`.
#[derive(Debug)]
pub struct LogGradGrad;
impl GradRule<LogGrad> for LogGradGrad {
    fn emit(fwd: &LogGrad, g: &mut GradCx<'_>) {
        let (dx, dy) = (g.wanted(fwd.dout), g.wanted(fwd.x));
        let dout = g.grad(fwd.dx);
        g.push(ElementwiseDivGrad { out: fwd.dx, dout, x: fwd.dout, y: fwd.x, dx, dy, axis: -1 });
    }
}

unary_formula!(
    /// Square: `out = x²`.
    Square(grad = SquareGrad, integers), |x| x * x,
    samples [
        uniform([2, 3]),
        given([2], [65536.0, -3.0]).of(DType::I32),
        given([2], [4294967296.0, -3000000000.0]).of(DType::I64),
        integers_below(2, [2]).of(DType::Bool) => fails("signed or floating point"),
    ],
    /// `dx = 2 * dout * x`.
    SquareGrad(grad = SquareGradGrad), |x, dout| dout * 2.0 * x
);
impl<I: Integer> PointwiseInteger for Square<I> {
    fn eval(&mut self) -> Result<()> {
        self.out = self.x * self.x;
        Ok(())
    }
}

/// `ddout = 2 * ddx * x`; the gradient of `x` is `2 * ddx * dout`.
#[derive(Debug)]
pub struct SquareGradGrad;
impl GradRule<SquareGrad> for SquareGradGrad {
    fn emit(fwd: &SquareGrad, g: &mut GradCx<'_>) {
        let ddx = g.grad(fwd.dx);
        if let Some(ddout) = g.wanted(fwd.dout) {
            g.push(SquareGrad { x: fwd.x, dout: ddx, dx: ddout });
        }
        if let Some(dx) = g.wanted(fwd.x) {
            g.push(SquareGrad { x: fwd.dout, dout: ddx, dx });
        }
    }
}

unary_formula!(
    /// Square root: `out = √x`.
    Sqrt(grad = SqrtGrad), |x| x.sqrt(),
    samples [positive([2, 3])],
    /// `dx = dout / (2 * out)`.
    SqrtGrad(grad = SqrtGradGrad), |out, dout| dout * 0.5 / out
);

/// `ddout = ddx / (2 * out)`; the gradient of `out` is `-ddx * dx / out`, as for a quotient by `out`.
#[derive(Debug)]
pub struct SqrtGradGrad;
impl GradRule<SqrtGrad> for SqrtGradGrad {
    fn emit(fwd: &SqrtGrad, g: &mut GradCx<'_>) {
        let ddx = g.grad(fwd.dx);
        if let Some(ddout) = g.wanted(fwd.dout) {
            g.push(SqrtGrad { out: fwd.out, dout: ddx, dx: ddout });
        }
        if let Some(d_out) = g.wanted(fwd.out) {
            let (x, y, dy) = (fwd.dout, fwd.out, Some(d_out));
            g.push(ElementwiseDivGrad { out: fwd.dx, dout: ddx, x, y, dx: None, dy, axis: -1 });
        }
    }
}

unary_formula!(
    /// Absolute value: `out = |x|`.
    ///
    /// At 0, the gradient is 0.
    Abs(grad = AbsGrad, integers), |x| x.abs(),
    samples [
        away_from(0.0, [2, 3]),
        given([3], [-2147483648.0, -7.0, 7.0]).of(DType::I32),
        given([2, 1], [-9007199254740992.0, 0.0]).of(DType::I64),
        integers_below(2, [2]).of(DType::U8) => fails("signed or floating point"),
    ],
    /// `dx = dout * sign(x)`, where `sign(0) = 0`.
    AbsGrad(grad = SelfAdjoint), |x, dout| {
        let zero = F::from(0.0);
        let not_above = F::select(zero.gt(x), -dout, zero);
        F::select(x.gt(zero), dout, not_above)
    }
);
impl<I: Integer> PointwiseInteger for Abs<I> {
    fn eval(&mut self) -> Result<()> {
        self.out = self.x.abs();
        Ok(())
    }
}
