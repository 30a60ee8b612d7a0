//! Elementwise functions of one variable, each defined by a formula.
//!
//! Their double gradients are composed of these functions and of elementwise products, so every order exists.

use autobwd::{
    DType, Derived, Float, GradCx, GradRule, Pointwise, Result, Var,
    check::*,
    op::{Integer, PointwiseInteger, SelfAdjoint},
    register_op,
};

pub use autobwd::operators::{Scale, ScaleGrad};

use crate::elementwise::{ElementwiseDivGrad, ElementwiseMul, ElementwiseMulGrad};

/// ReLU: `out = max(x, 0)`; NaN stays NaN.
///
/// At 0, the gradient is 0.
#[register_op(grad = ReluGrad, pointwise)]
pub struct Relu<V = Var> {
    /// Any shape.
    #[input]
    pub x: V,
    /// Same shape as `x`.
    #[output(inplace = x)]
    pub out: V,
}
impl<F: Float> Pointwise for Relu<F> {
    fn eval(&mut self) {
        self.out = F::select(F::from(0.0).gt(self.x), F::from(0.0), self.x);
    }
}
autobwd::samples!(
    Relu,
    [
        Relu { x: away_from(0.0, [2, 3]), out: out() },
        Relu { x: given([3], [-1.0, 0.5, 2.0]), out: out() },
        Relu { x: uniform([0, 2]), out: out() },
    ]
);

/// `dx = dout` where `out > 0`, else 0.
#[register_op(grad_of = Relu, grad = SelfAdjoint, pointwise)]
pub struct ReluGrad<V = Var> {
    pub out: V,
    pub dout: V,
    #[output(inplace = dout)]
    pub dx: V,
}
impl<F: Float> Pointwise for ReluGrad<F> {
    fn eval(&mut self) {
        self.dx = F::select(self.out.gt(F::from(0.0)), self.dout, F::from(0.0));
    }
}

/// Hyperbolic tangent: `out = tanh(x)`.
#[register_op(grad = TanhGrad, pointwise)]
pub struct Tanh<V = Var> {
    /// Any shape.
    #[input]
    pub x: V,
    /// Same shape as `x`.
    #[output(inplace = x)]
    pub out: V,
}
impl<F: Float> Pointwise for Tanh<F> {
    #[inline(always)]
    fn eval(&mut self) {
        self.out = self.x.tanh();
    }
}
autobwd::samples!(Tanh, [Tanh { x: between(-3.0, 3.0, [2, 3]), out: out() }]);

/// `dx = dout * (1 - out²)`.
#[register_op(grad_of = Tanh, grad = Derived, pointwise)]
pub struct TanhGrad<V = Var> {
    pub out: V,
    pub dout: V,
    #[output(inplace = dout)]
    pub dx: V,
}
impl<F: Float> Pointwise for TanhGrad<F> {
    fn eval(&mut self) {
        self.dx = self.dout * (F::from(1.0) - self.out * self.out);
    }
}

/// Logistic sigmoid: `out = 1 / (1 + exp(-x))`.
#[register_op(grad = SigmoidGrad, pointwise)]
pub struct Sigmoid<V = Var> {
    /// Any shape.
    #[input]
    pub x: V,
    /// Same shape as `x`.
    #[output(inplace = x)]
    pub out: V,
}
impl<F: Float> Pointwise for Sigmoid<F> {
    #[inline(always)]
    fn eval(&mut self) {
        self.out = self.x.sigmoid();
    }
}
autobwd::samples!(Sigmoid, [Sigmoid { x: between(-3.0, 3.0, [2, 3]), out: out() }]);

/// `dx = dout * out * (1 - out)`.
#[register_op(grad_of = Sigmoid, grad = SigmoidGradGrad, pointwise)]
pub struct SigmoidGrad<V = Var> {
    pub out: V,
    pub dout: V,
    #[output(inplace = dout)]
    pub dx: V,
}
impl<F: Float> Pointwise for SigmoidGrad<F> {
    fn eval(&mut self) {
        self.dx = self.dout * self.out * (F::from(1.0) - self.out);
    }
}

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

/// Exponential function: `out = exp(x)`.
#[register_op(grad = ExpGrad, pointwise)]
pub struct Exp<V = Var> {
    /// Any shape.
    #[input]
    pub x: V,
    /// Same shape as `x`.
    #[output(inplace = x)]
    pub out: V,
}
impl<F: Float> Pointwise for Exp<F> {
    #[inline(always)]
    fn eval(&mut self) {
        self.out = self.x.exp();
    }
}
autobwd::samples!(Exp, [Exp { x: between(-2.0, 2.0, [2, 3]), out: out() }]);

/// `dx = dout * out`.
#[register_op(grad_of = Exp, grad = ExpGradGrad, pointwise)]
pub struct ExpGrad<V = Var> {
    pub out: V,
    pub dout: V,
    #[output(inplace = dout)]
    pub dx: V,
}
impl<F: Float> Pointwise for ExpGrad<F> {
    fn eval(&mut self) {
        self.dx = self.dout * self.out;
    }
}

/// The gradient of the product `dout * out`.
#[derive(Debug)]
pub struct ExpGradGrad;
impl GradRule<ExpGrad> for ExpGradGrad {
    fn emit(fwd: &ExpGrad, g: &mut GradCx<'_>) {
        let (dx, dy) = (g.wanted(fwd.dout), g.wanted(fwd.out));
        g.push(ElementwiseMulGrad { x: fwd.dout, y: fwd.out, dout: g.grad(fwd.dx), dx, dy, axis: -1 });
    }
}

/// Natural logarithm: `out = ln(x)`.
#[register_op(grad = LogGrad, pointwise)]
pub struct Log<V = Var> {
    /// Any shape.
    #[input]
    pub x: V,
    /// Same shape as `x`.
    #[output(inplace = x)]
    pub out: V,
}
impl<F: Float> Pointwise for Log<F> {
    #[inline(always)]
    fn eval(&mut self) {
        self.out = self.x.log();
    }
}
autobwd::samples!(Log, [Log { x: positive([2, 3]), out: out() }]);

/// `dx = dout / x`.
#[register_op(grad_of = Log, grad = LogGradGrad, pointwise)]
pub struct LogGrad<V = Var> {
    pub x: V,
    pub dout: V,
    #[output(inplace = dout)]
    pub dx: V,
}
impl<F: Float> Pointwise for LogGrad<F> {
    fn eval(&mut self) {
        self.dx = self.dout / self.x;
    }
}

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

/// Square: `out = x²`.
#[register_op(grad = SquareGrad, pointwise, integers)]
pub struct Square<V = Var> {
    /// Any shape.
    #[input]
    pub x: V,
    /// Same shape as `x`.
    #[output(inplace = x)]
    pub out: V,
}
impl<F: Float> Pointwise for Square<F> {
    fn eval(&mut self) {
        self.out = self.x * self.x;
    }
}
impl<I: Integer> PointwiseInteger for Square<I> {
    fn eval(&mut self) -> Result<()> {
        self.out = self.x * self.x;
        Ok(())
    }
}
autobwd::samples!(
    Square,
    [
        Square { x: uniform([2, 3]), out: out() },
        Square { x: given([2], [65536.0, -3.0]).of(DType::I32), out: out() },
        Square { x: given([2], [4294967296.0, -3000000000.0]).of(DType::I64), out: out() },
        Square { x: integers_below(2, [2]).of(DType::Bool), out: out() }.fails("signed or floating point"),
    ]
);

/// `dx = 2 * dout * x`.
#[register_op(grad_of = Square, grad = SquareGradGrad, pointwise)]
pub struct SquareGrad<V = Var> {
    pub x: V,
    pub dout: V,
    #[output(inplace = dout)]
    pub dx: V,
}
impl<F: Float> Pointwise for SquareGrad<F> {
    fn eval(&mut self) {
        self.dx = self.dout * 2.0 * self.x;
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

/// Square root: `out = √x`.
#[register_op(grad = SqrtGrad, pointwise)]
pub struct Sqrt<V = Var> {
    /// Any shape.
    #[input]
    pub x: V,
    /// Same shape as `x`.
    #[output(inplace = x)]
    pub out: V,
}
impl<F: Float> Pointwise for Sqrt<F> {
    fn eval(&mut self) {
        self.out = self.x.sqrt();
    }
}
autobwd::samples!(Sqrt, [Sqrt { x: positive([2, 3]), out: out() }]);

/// `dx = dout / (2 * out)`.
#[register_op(grad_of = Sqrt, grad = SqrtGradGrad, pointwise)]
pub struct SqrtGrad<V = Var> {
    pub out: V,
    pub dout: V,
    #[output(inplace = dout)]
    pub dx: V,
}
impl<F: Float> Pointwise for SqrtGrad<F> {
    fn eval(&mut self) {
        self.dx = self.dout * 0.5 / self.out;
    }
}

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

/// Absolute value: `out = |x|`.
///
/// At 0, the gradient is 0.
#[register_op(grad = AbsGrad, pointwise, integers)]
pub struct Abs<V = Var> {
    /// Any shape.
    #[input]
    pub x: V,
    /// Same shape as `x`.
    #[output(inplace = x)]
    pub out: V,
}
impl<F: Float> Pointwise for Abs<F> {
    fn eval(&mut self) {
        self.out = self.x.abs();
    }
}
impl<I: Integer> PointwiseInteger for Abs<I> {
    fn eval(&mut self) -> Result<()> {
        self.out = self.x.abs();
        Ok(())
    }
}
autobwd::samples!(
    Abs,
    [
        Abs { x: away_from(0.0, [2, 3]), out: out() },
        Abs { x: given([3], [-2147483648.0, -7.0, 7.0]).of(DType::I32), out: out() },
        Abs { x: given([2, 1], [-9007199254740992.0, 0.0]).of(DType::I64), out: out() },
        Abs { x: integers_below(2, [2]).of(DType::U8), out: out() }.fails("signed or floating point"),
    ]
);

/// `dx = dout * sign(x)`, where `sign(0) = 0`.
#[register_op(grad_of = Abs, grad = SelfAdjoint, pointwise)]
pub struct AbsGrad<V = Var> {
    pub x: V,
    pub dout: V,
    #[output(inplace = dout)]
    pub dx: V,
}
impl<F: Float> Pointwise for AbsGrad<F> {
    fn eval(&mut self) {
        let zero = F::from(0.0);
        let not_above = F::select(zero.gt(self.x), -self.dout, zero);
        self.dx = F::select(self.x.gt(zero), self.dout, not_above);
    }
}
