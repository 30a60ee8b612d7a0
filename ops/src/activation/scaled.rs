//! Scaled units (`selu`, `celu`, `stanh`), bounded units (`brelu`, `soft_relu`) and `logsigmoid`, each defined by a
//! formula.

use autobwd::{Derived, Float, Pointwise, Var, check::*, op::DerivedFromInputs, register_op};

use crate::unary::unary_formula;

/// Scaled exponential linear unit: `out = scale * x` where `x > 0`, else `scale * alpha * (exp(x) - 1)` (Klambauer et
/// al., 2017).
#[register_op(grad = SeluGrad, pointwise)]
pub struct Selu<V = Var> {
    /// Any shape.
    #[input]
    pub x: V,
    /// Same shape as `x`.
    #[output(inplace = x)]
    pub out: V,
    /// Factor of the unit; it is positive.
    #[attr(default = 1.050_701, above = 0.0)]
    pub scale: f32,
    /// The negated limit of the unit for `x → -∞`, before it is scaled; it is not negative.
    #[attr(default = 1.673_263_2, min = 0.0)]
    pub alpha: f32,
}
impl<F: Float> Pointwise for Selu<F> {
    #[inline(always)]
    fn eval(&mut self) {
        let (x, scale, alpha) = (self.x, F::from(self.scale), F::from(self.alpha));
        self.out = scale * F::select(x.gt(F::from(0.0)), x, alpha * x.expm1());
    }
}
autobwd::samples!(
    Selu,
    [
        Selu { x: away_from(0.0, [2, 3]), out: out(), scale: 1.050_701, alpha: 1.673_263_2 },
        Selu { x: away_from(0.0, [2, 3]), out: out(), scale: 0.5, alpha: 0.75 },
        Selu { x: given([2], [-900.0, 900.0]), out: out(), scale: 1.0, alpha: 1.0 },
    ]
);

/// `dx = dout * scale` where `out > 0`, else `dout * (out + scale * alpha)`.
#[register_op(grad_of = Selu, grad = Derived, pointwise)]
pub struct SeluGrad<V = Var> {
    pub out: V,
    pub dout: V,
    #[output(inplace = dout)]
    pub dx: V,
    pub scale: f32,
    pub alpha: f32,
}
impl<F: Float> Pointwise for SeluGrad<F> {
    fn eval(&mut self) {
        let (scale, alpha) = (F::from(self.scale), F::from(self.alpha));
        let slope = F::select(self.out.gt(F::from(0.0)), scale, self.out + scale * alpha);
        self.dx = self.dout * slope;
    }
}

/// Continuously differentiable exponential linear unit: `out = x` where `x > 0`, else `alpha * (exp(x / alpha) - 1)`
/// (Barron, 2017).
#[register_op(grad = DerivedFromInputs, pointwise)]
pub struct Celu<V = Var> {
    /// Any shape.
    #[input]
    pub x: V,
    /// Same shape as `x`.
    #[output(inplace = x)]
    pub out: V,
    /// The negated limit for `x → -∞`.
    #[attr(default = 1.0)]
    pub alpha: f32,
}
impl<F: Float> Pointwise for Celu<F> {
    #[inline(always)]
    fn eval(&mut self) {
        let (x, alpha) = (self.x, f64::from(self.alpha));
        self.out = F::select(x.gt(F::from(0.0)), x, (x / alpha).expm1() * alpha);
    }
}
autobwd::samples!(
    Celu,
    [
        Celu { x: away_from(0.0, [2, 3]), out: out(), alpha: 1.0 },
        Celu { x: away_from(0.0, [2, 3]), out: out(), alpha: 0.625 },
        Celu { x: given([2], [-900.0, 900.0]), out: out(), alpha: 1.0 },
    ]
);

/// Scaled hyperbolic tangent: `out = scale_b * tanh(scale_a * x)`.
#[register_op(grad = DerivedFromInputs, pointwise)]
pub struct Stanh<V = Var> {
    /// Any shape.
    #[input]
    pub x: V,
    /// Same shape as `x`.
    #[output(inplace = x)]
    pub out: V,
    /// Factor of `x`.
    #[attr(default = 0.67)]
    pub scale_a: f32,
    /// Factor of the function.
    #[attr(default = 1.7159)]
    pub scale_b: f32,
}
impl<F: Float> Pointwise for Stanh<F> {
    #[inline(always)]
    fn eval(&mut self) {
        self.out = (self.x * f64::from(self.scale_a)).tanh() * f64::from(self.scale_b);
    }
}
autobwd::samples!(
    Stanh,
    [
        Stanh { x: between(-3.0, 3.0, [2, 3]), out: out(), scale_a: 0.67, scale_b: 1.7159 },
        Stanh { x: between(-3.0, 3.0, [2, 3]), out: out(), scale_a: -2.0, scale_b: 0.5 },
    ]
);

/// Bounded ReLU: `out = min(max(x, t_min), t_max)`; NaN stays NaN.
///
/// At the bounds, the gradient is 0.
#[register_op(grad = DerivedFromInputs, pointwise)]
pub struct Brelu<V = Var> {
    /// Any shape.
    #[input]
    pub x: V,
    /// Same shape as `x`.
    #[output(inplace = x)]
    pub out: V,
    /// Lower bound.
    #[attr(default = 0.0)]
    pub t_min: f32,
    /// Upper bound.
    #[attr(default = 24.0)]
    pub t_max: f32,
}
impl<F: Float> Pointwise for Brelu<F> {
    fn eval(&mut self) {
        let (x, low, high) = (self.x, F::from(self.t_min), F::from(self.t_max));
        // On the bounds, the gradient is 0.
        let below = F::select(x.equals(x), low, x);
        self.out = F::select(x.gt(low), F::select(high.gt(x), x, high), below);
    }
}
autobwd::samples!(
    Brelu,
    [
        Brelu { x: given([2, 3], [-2.0, 0.5, 3.0, 22.0, 25.0, 90.0]), out: out(), t_min: 0.0, t_max: 24.0 },
        Brelu { x: given([4], [-2.0, 0.75, 1.25, 5.5]), out: out(), t_min: 1.0, t_max: 1.5 },
        Brelu { x: given([3], [0.0, 24.0, f64::NAN]), out: out(), t_min: 0.0, t_max: 24.0 }
            .not_a_derivative("it has kinks at the bounds"),
    ]
);

/// Soft ReLU: `out = ln(1 + exp(min(max(x, -threshold), threshold)))`.
#[register_op(grad = SoftReluGrad, pointwise)]
pub struct SoftRelu<V = Var> {
    /// Any shape.
    #[input]
    pub x: V,
    /// Same shape as `x`.
    #[output(inplace = x)]
    pub out: V,
    /// Bound of the exponent's size.
    #[attr(default = 40.0)]
    pub threshold: f32,
}
impl<F: Float> Pointwise for SoftRelu<F> {
    #[inline(always)]
    fn eval(&mut self) {
        let (x, bound) = (self.x, F::from(self.threshold));
        let low = F::select((-bound).gt(x), -bound, x);
        let x = F::select(low.gt(bound), bound, low);
        self.out = x.max(F::from(0.0)) + (-x.abs()).exp().log1p();
    }
}
autobwd::samples!(
    SoftRelu,
    [
        SoftRelu { x: between(-3.0, 3.0, [2, 3]), out: out(), threshold: 40.0 },
        SoftRelu { x: given([2], [-30.0, 30.0]), out: out(), threshold: 40.0 },
        SoftRelu { x: given([3], [-3.0, 0.5, 3.0]), out: out(), threshold: 2.0 }
            .not_a_derivative("the reference compares the output with the threshold, not the input"),
    ]
);

/// `dx = dout * (1 - exp(-out))` where `-threshold < out < threshold`, else 0.
#[register_op(grad_of = SoftRelu, grad = Derived, pointwise)]
pub struct SoftReluGrad<V = Var> {
    pub out: V,
    pub dout: V,
    #[output(inplace = dout)]
    pub dx: V,
    pub threshold: f32,
}
impl<F: Float> Pointwise for SoftReluGrad<F> {
    #[inline(always)]
    fn eval(&mut self) {
        let (out, zero, bound) = (self.out, F::from(0.0), F::from(self.threshold));
        let above = F::select(out.gt(-bound), -(self.dout * (-out).expm1()), zero);
        self.dx = F::select(bound.gt(out), above, zero);
    }
}

unary_formula!(
    /// Logarithm of the sigmoid: `out = -ln(1 + exp(-x))`.
    Logsigmoid(grad = LogsigmoidGrad), |x| {
        let below = F::select(F::from(0.0).gt(x), x, F::from(0.0));
        below - (-x.abs()).exp().log1p()
    },
    samples [between(-3.0, 3.0, [2, 3]), given([3], [-900.0, 40.0, 900.0])],
    /// `dx = dout * sigmoid(-x)`.
    LogsigmoidGrad(grad = Derived), |x, dout| dout * (-x).sigmoid()
);
