//! Sine and cosine.
//!
//! Their double gradients are composed of these functions and of elementwise products, so every order exists.

use autobwd::{GradCx, GradRule, check::*};

use crate::{activation::Scale, elementwise::ElementwiseMul, unary::unary_formula};

unary_formula!(
    /// Sine of an angle in radians: `out = sin(x)`.
    Sin(grad = SinGrad), |x| x.sin(),
    samples [between(-4.0, 4.0, [2, 3]), given([3], [0.0, std::f64::consts::FRAC_PI_2, 100.0]), uniform([])],
    /// `dx = dout * cos(x)`.
    SinGrad(grad = SinGradGrad), |x, dout| dout * x.cos()
);

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

unary_formula!(
    /// Cosine of an angle in radians: `out = cos(x)`.
    Cos(grad = CosGrad), |x| x.cos(),
    samples [between(-4.0, 4.0, [2, 3]), given([3], [0.0, std::f64::consts::FRAC_PI_2, 100.0]), uniform([])],
    /// `dx = -dout * sin(x)`.
    CosGrad(grad = CosGradGrad), |x, dout| -dout * x.sin()
);

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
