//! Piecewise rectifiers (`leaky_relu`, `elu`, `relu6`, `hard_sigmoid`, `hard_swish`), each defined by a formula.

use autobwd::{Derived, Float, Pointwise, Var, check::*, op::DerivedFromInputs, register_op};

/// Leaky ReLU: `out = x` where `x > 0`, else `alpha * x`.
///
/// At 0, the gradient is `alpha`.
#[register_op(grad = DerivedFromInputs, pointwise)]
pub struct LeakyRelu<V = Var> {
    /// Any shape.
    #[input]
    pub x: V,
    /// Same shape as `x`.
    #[output(inplace = x)]
    pub out: V,
    /// Factor of negative elements.
    #[attr(default = f64::from(0.02_f32))]
    pub alpha: f64,
}
impl<F: Float> Pointwise for LeakyRelu<F> {
    fn eval(&mut self) {
        let x = self.x;
        self.out = F::select(x.gt(F::from(0.0)), x, x * self.alpha);
    }
}
autobwd::samples!(
    LeakyRelu,
    [
        LeakyRelu { x: away_from(0.0, [2, 3]), out: out(), alpha: 0.02 },
        LeakyRelu { x: away_from(0.0, [2, 3]), out: out(), alpha: -1.5 },
        LeakyRelu { x: given([], [0.0]), out: out(), alpha: 0.5 }.not_a_derivative("it has a kink at 0"),
    ]
);

/// Exponential linear unit: `out = x` where `x > 0`, else `alpha * (exp(x) - 1)`.
#[register_op(grad = Derived, pointwise)]
pub struct Elu<V = Var> {
    /// Any shape.
    #[input]
    pub x: V,
    /// Same shape as `x`.
    #[output(inplace = x)]
    pub out: V,
    /// The negated limit for `x → -∞`.
    #[attr(default = 1.0)]
    pub alpha: f64,
}
impl<F: Float> Pointwise for Elu<F> {
    #[inline(always)]
    fn eval(&mut self) {
        let (x, alpha) = (self.x, F::from(self.alpha));
        self.out = F::select(x.gt(F::from(0.0)), x, alpha * x.expm1());
    }
}
autobwd::samples!(
    Elu,
    [
        Elu { x: away_from(0.0, [2, 3]), out: out(), alpha: 1.0 },
        Elu { x: away_from(0.0, [2, 3]), out: out(), alpha: 0.7 },
        Elu { x: given([2], [-900.0, 900.0]), out: out(), alpha: 1.0 },
        Elu { x: given([], [0.0]), out: out(), alpha: 0.5 }.not_a_derivative("it has a kink at 0"),
    ]
);

/// ReLU with an upper bound: `out = min(max(x, 0), threshold)`; NaN stays NaN.
///
/// At the bounds, the gradient is 0.
#[register_op(grad = Relu6Grad, pointwise)]
pub struct Relu6<V = Var> {
    /// Any shape.
    #[input]
    pub x: V,
    /// Same shape as `x`.
    #[output(inplace = x)]
    pub out: V,
    /// Upper bound of the output.
    #[attr(default = 6.0)]
    pub threshold: f32,
}
impl<F: Float> Pointwise for Relu6<F> {
    fn eval(&mut self) {
        let (zero, most) = (F::from(0.0), F::from(self.threshold));
        let low = F::select(zero.gt(self.x), zero, self.x);
        self.out = F::select(low.gt(most), most, low);
    }
}
autobwd::samples!(
    Relu6,
    [
        Relu6 { x: given([2, 3], [-2.0, 0.5, 3.0, 5.5, 6.5, 9.0]), out: out(), threshold: 6.0 },
        Relu6 { x: given([4], [-2.0, 0.5, 1.25, 5.5]), out: out(), threshold: 1.5 },
        Relu6 { x: given([3], [0.0, 6.0, f64::NAN]), out: out(), threshold: 6.0 }
            .not_a_derivative("it has kinks at 0 and 6"),
    ]
);

/// `dx = dout` where `0 < out < threshold`, else 0.
#[register_op(grad_of = Relu6, grad = Derived, pointwise)]
pub struct Relu6Grad<V = Var> {
    pub out: V,
    pub dout: V,
    #[output(inplace = dout)]
    pub dx: V,
    pub threshold: f32,
}
impl<F: Float> Pointwise for Relu6Grad<F> {
    fn eval(&mut self) {
        let (zero, most) = (F::from(0.0), F::from(self.threshold));
        let above = F::select(self.out.gt(zero), self.dout, zero);
        self.dx = F::select(most.gt(self.out), above, zero);
    }
}

/// Hard sigmoid: `out = min(max(slope * x + offset, 0), 1)`; NaN stays NaN.
///
/// At the bounds, the gradient is 0.
#[register_op(grad = HardSigmoidGrad, pointwise)]
pub struct HardSigmoid<V = Var> {
    /// Any shape.
    #[input]
    pub x: V,
    /// Same shape as `x`.
    #[output(inplace = x)]
    pub out: V,
    /// Factor of `x`.
    #[attr(default = 0.2)]
    pub slope: f32,
    /// Value at 0.
    #[attr(default = 0.5)]
    pub offset: f32,
}
impl<F: Float> Pointwise for HardSigmoid<F> {
    fn eval(&mut self) {
        let (zero, one) = (F::from(0.0), F::from(1.0));
        let line = self.x * F::from(self.slope) + F::from(self.offset);
        let low = F::select(zero.gt(line), zero, line);
        self.out = F::select(low.gt(one), one, low);
    }
}
autobwd::samples!(
    HardSigmoid,
    [
        HardSigmoid {
            x: given([2, 3], [-4.0, -2.0, -1.0, 0.5, 1.75, 4.0]),
            out: out(),
            slope: 0.2,
            offset: 0.5
        },
        HardSigmoid { x: given([4], [-4.0, -0.5, 0.25, 4.0]), out: out(), slope: -0.5, offset: 0.25 },
    ]
);

/// `dx = slope * dout` where `0 < out < 1`, else 0.
#[register_op(grad_of = HardSigmoid, grad = Derived, pointwise)]
pub struct HardSigmoidGrad<V = Var> {
    pub out: V,
    pub dout: V,
    #[output(inplace = dout)]
    pub dx: V,
    pub slope: f32,
    pub offset: f32,
}
impl<F: Float> Pointwise for HardSigmoidGrad<F> {
    fn eval(&mut self) {
        let (zero, one) = (F::from(0.0), F::from(1.0));
        let above = F::select(self.out.gt(zero), self.dout * F::from(self.slope), zero);
        self.dx = F::select(one.gt(self.out), above, zero);
    }
}

/// Hard swish: `out = x * min(max(x + offset, 0), threshold) / scale` (Howard et al., 2019).
///
/// At the kinks, the gradient is 0 and `threshold / scale`, as beyond them.
#[register_op(grad = DerivedFromInputs, pointwise)]
pub struct HardSwish<V = Var> {
    /// Any shape.
    #[input]
    pub x: V,
    /// Same shape as `x`.
    #[output(inplace = x)]
    pub out: V,
    /// Upper bound of the factor of `x` before division.
    #[attr(default = 6.0, min = 0.0)]
    pub threshold: f32,
    /// Divisor.
    #[attr(default = 6.0)]
    pub scale: f32,
    /// Value of the factor of `x` at 0, before division.
    #[attr(default = 3.0)]
    pub offset: f32,
}
impl<F: Float> Pointwise for HardSwish<F> {
    fn eval(&mut self) {
        let (x, threshold) = (self.x, self.threshold);
        let line = x + f64::from(self.offset);
        // Constant factors: the line keeps its derivative up to infinity.
        let above = F::select(F::from(threshold).gt(line), x * line, x * f64::from(threshold));
        self.out = F::select(line.gt(F::from(0.0)), above, x * 0.0) / f64::from(self.scale);
    }
}
autobwd::samples!(
    HardSwish,
    [
        HardSwish { offset: 3.0, ..hard_swish(given([2, 3], [-4.0, -2.0, -1.0, 0.5, 1.75, 4.0])) },
        HardSwish { threshold: 2.0, scale: 5.0, ..hard_swish(given([4], [-4.0, -0.5, 0.25, 4.0])) },
        HardSwish { threshold: -1.0, ..hard_swish(given([2], [-4.0, 4.0])) }.fails("`threshold`"),
    ]
);

fn hard_swish(x: Draw) -> HardSwish<Draw> {
    HardSwish { x, out: out(), threshold: 6.0, scale: 6.0, offset: 1.0 }
}
