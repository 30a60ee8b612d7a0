//! Sine and cosine.
//!
//! Their double gradients are composed of these functions and of elementwise products, so every order exists.

use autobwd::{Float, GradCx, GradRule, Pointwise, Var, check::*, register_op};

use crate::{activation::Scale, elementwise::ElementwiseMul};

/// Sine of an angle in radians: `out = sin(x)`.
#[register_op(grad = SinGrad, pointwise)]
pub struct Sin<V = Var> {
    /// Any shape.
    #[input]
    pub x: V,
    /// Same shape as `x`.
    #[output(inplace = x)]
    pub out: V,
}
impl<F: Float> Pointwise for Sin<F> {
    #[inline(always)]
    fn eval(&mut self) {
        self.out = self.x.sin();
    }
}
autobwd::samples!(
    Sin,
    [
        Sin { x: between(-4.0, 4.0, [2, 3]), out: out() },
        Sin { x: given([3], [0.0, std::f64::consts::FRAC_PI_2, 100.0]), out: out() },
        Sin { x: uniform([]), out: out() },
    ]
);

/// `dx = dout * cos(x)`.
#[register_op(grad_of = Sin, grad = SinGradGrad, pointwise)]
pub struct SinGrad<V = Var> {
    pub x: V,
    pub dout: V,
    #[output(inplace = dout)]
    pub dx: V,
}
impl<F: Float> Pointwise for SinGrad<F> {
    #[inline(always)]
    fn eval(&mut self) {
        self.dx = self.dout * self.x.cos();
    }
}

/// `ddout = ddx * cos(x)`; the gradient of `x` is `-dout * ddx * sin(x)`.
#[derive(Debug)]
pub struct SinGradGrad;
impl GradRule<SinGrad> for SinGradGrad {
    fn emit(fwd: &SinGrad, g: &mut GradCx<'_>) {
        let ddx = g.grad(fwd.dx);
        if let Some(ddout) = g.wanted(fwd.dout) {
            g.push(SinGrad { x: fwd.x, dout: ddx, dx: ddout });
        }
        if let Some(dx) = g.wanted(fwd.x) {
            let product = g.fresh("product");
            g.push(ElementwiseMul { x: fwd.dout, y: ddx, out: product, axis: -1 });
            g.push(CosGrad { x: fwd.x, dout: product, dx });
        }
    }
}

/// Cosine of an angle in radians: `out = cos(x)`.
#[register_op(grad = CosGrad, pointwise)]
pub struct Cos<V = Var> {
    /// Any shape.
    #[input]
    pub x: V,
    /// Same shape as `x`.
    #[output(inplace = x)]
    pub out: V,
}
impl<F: Float> Pointwise for Cos<F> {
    #[inline(always)]
    fn eval(&mut self) {
        self.out = self.x.cos();
    }
}
autobwd::samples!(
    Cos,
    [
        Cos { x: between(-4.0, 4.0, [2, 3]), out: out() },
        Cos { x: given([3], [0.0, std::f64::consts::FRAC_PI_2, 100.0]), out: out() },
        Cos { x: uniform([]), out: out() },
    ]
);

/// `dx = -dout * sin(x)`.
#[register_op(grad_of = Cos, grad = CosGradGrad, pointwise)]
pub struct CosGrad<V = Var> {
    pub x: V,
    pub dout: V,
    #[output(inplace = dout)]
    pub dx: V,
}
impl<F: Float> Pointwise for CosGrad<F> {
    #[inline(always)]
    fn eval(&mut self) {
        self.dx = -self.dout * self.x.sin();
    }
}

/// `ddout = -ddx * sin(x)`; the gradient of `x` is `-dout * ddx * cos(x)`.
#[derive(Debug)]
pub struct CosGradGrad;
impl GradRule<CosGrad> for CosGradGrad {
    fn emit(fwd: &CosGrad, g: &mut GradCx<'_>) {
        let ddx = g.grad(fwd.dx);
        if let Some(ddout) = g.wanted(fwd.dout) {
            g.push(CosGrad { x: fwd.x, dout: ddx, dx: ddout });
        }
        if let Some(dx) = g.wanted(fwd.x) {
            let (product, negated) = (g.fresh("product"), g.fresh("negated"));
            g.push(ElementwiseMul { x: fwd.dout, y: ddx, out: product, axis: -1 });
            g.push(Scale { x: product, out: negated, scale: -1.0, bias: 0.0, bias_after_scale: true });
            g.push(SinGrad { x: fwd.x, dout: negated, dx });
        }
    }
}
