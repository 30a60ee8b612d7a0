//! `rsqrt`, `reciprocal`, `erf`, `log1p`, `expm1` and `pow`, each defined by a formula.

use autobwd::{
    DType, Derived, Float, Pointwise, Result, Var,
    check::*,
    op::{DerivedFromInputs, Integer, PointwiseInteger},
    register_op,
};

use crate::min_max_pow::negative_power_of_zero;

/// Reciprocal square root: `out = 1 / √x`.
#[register_op(grad = RsqrtGrad, pointwise)]
pub struct Rsqrt<V = Var> {
    /// Any shape.
    #[input]
    pub x: V,
    /// Same shape as `x`.
    #[output(inplace = x)]
    pub out: V,
}
impl<F: Float> Pointwise for Rsqrt<F> {
    fn eval(&mut self) {
        self.out = F::from(1.0) / self.x.sqrt();
    }
}
autobwd::samples!(Rsqrt, [Rsqrt { x: positive([2, 3]), out: out() },]);

/// `dx = -dout * out³ / 2`.
#[register_op(grad_of = Rsqrt, grad = Derived, pointwise)]
pub struct RsqrtGrad<V = Var> {
    pub out: V,
    pub dout: V,
    #[output(inplace = dout)]
    pub dx: V,
}
impl<F: Float> Pointwise for RsqrtGrad<F> {
    fn eval(&mut self) {
        self.dx = self.dout * -0.5 * self.out * self.out * self.out;
    }
}

/// Reciprocal: `out = 1 / x`.
#[register_op(grad = ReciprocalGrad, pointwise)]
pub struct Reciprocal<V = Var> {
    /// Any shape.
    #[input]
    pub x: V,
    /// Same shape as `x`.
    #[output(inplace = x)]
    pub out: V,
}
impl<F: Float> Pointwise for Reciprocal<F> {
    fn eval(&mut self) {
        self.out = F::from(1.0) / self.x;
    }
}
autobwd::samples!(Reciprocal, [Reciprocal { x: away_from(0.0, [2, 3]), out: out() },]);

/// `dx = -dout * out²`.
#[register_op(grad_of = Reciprocal, grad = Derived, pointwise)]
pub struct ReciprocalGrad<V = Var> {
    pub out: V,
    pub dout: V,
    #[output(inplace = dout)]
    pub dx: V,
}
impl<F: Float> Pointwise for ReciprocalGrad<F> {
    fn eval(&mut self) {
        self.dx = -self.dout * self.out * self.out;
    }
}

/// Error function: `out = 2 / √π · ∫ exp(-t²) dt` from 0 to `x`.
#[register_op(grad = DerivedFromInputs, pointwise)]
pub struct Erf<V = Var> {
    /// Any shape.
    #[input]
    pub x: V,
    /// Same shape as `x`.
    #[output(inplace = x)]
    pub out: V,
}
impl<F: Float> Pointwise for Erf<F> {
    #[inline(always)]
    fn eval(&mut self) {
        self.out = self.x.erf();
    }
}
autobwd::samples!(
    Erf,
    [
        Erf { x: between(-3.0, 3.0, [2, 3]), out: out() },
        Erf { x: given([4], [-1e-9, 0.0, 0.92, 7.0]), out: out() },
    ]
);

/// `out = ln(1 + x)`, accurate near 0.
#[register_op(grad = DerivedFromInputs, pointwise)]
pub struct Log1p<V = Var> {
    /// Any shape.
    #[input]
    pub x: V,
    /// Same shape as `x`.
    #[output(inplace = x)]
    pub out: V,
}
impl<F: Float> Pointwise for Log1p<F> {
    #[inline(always)]
    fn eval(&mut self) {
        self.out = self.x.log1p();
    }
}
autobwd::samples!(
    Log1p,
    [
        Log1p { x: between(-0.5, 3.0, [2, 3]), out: out() },
        Log1p { x: given([2], [1e-9, -1e-12]), out: out() },
    ]
);

/// `out = exp(x) - 1`, accurate near 0.
#[register_op(grad = Expm1Grad, pointwise)]
pub struct Expm1<V = Var> {
    /// Any shape.
    #[input]
    pub x: V,
    /// Same shape as `x`.
    #[output(inplace = x)]
    pub out: V,
}
impl<F: Float> Pointwise for Expm1<F> {
    #[inline(always)]
    fn eval(&mut self) {
        self.out = self.x.expm1();
    }
}
autobwd::samples!(
    Expm1,
    [
        Expm1 { x: between(-2.0, 2.0, [2, 3]), out: out() },
        Expm1 { x: given([2], [1e-9, -1e-12]), out: out() },
    ]
);

/// `dx = dout * (out + 1)`.
#[register_op(grad_of = Expm1, grad = Derived, pointwise)]
pub struct Expm1Grad<V = Var> {
    pub out: V,
    pub dout: V,
    #[output(inplace = dout)]
    pub dx: V,
}
impl<F: Float> Pointwise for Expm1Grad<F> {
    fn eval(&mut self) {
        self.dx = self.dout * (self.out + 1.0);
    }
}

/// Power with a constant exponent: `out = x ^ factor`. Integer results are truncated; a negative exponent of 0 is an
/// error.
#[register_op(grad = DerivedFromInputs, pointwise, integers)]
pub struct Pow<V = Var> {
    /// Any shape.
    #[input]
    pub x: V,
    /// Same shape as `x`.
    #[output(inplace = x)]
    pub out: V,
    /// The exponent.
    #[attr(default = 1.0)]
    pub factor: f64,
}
impl<F: Float> Pointwise for Pow<F> {
    #[inline(always)]
    fn eval(&mut self) {
        self.out = self.x.pow(F::from(self.factor));
    }
}
impl<I: Integer> PointwiseInteger for Pow<I> {
    fn eval(&mut self) -> Result<()> {
        let power = self.x.checked_pow(I::of("factor", self.factor)?);
        self.out = power.ok_or_else(negative_power_of_zero)?;
        Ok(())
    }
}
autobwd::samples!(
    Pow,
    [
        Pow { x: positive([2, 3]), out: out(), factor: 0.5 },
        Pow { x: given([4], [-2.0, -0.5, 0.25, 1.5]), out: out(), factor: 3.0 },
        Pow { x: away_from(0.0, [3]), out: out(), factor: -2.0 },
        Pow { x: uniform([2, 3]), out: out(), factor: 0.0 },
        Pow { x: given([3], [-3.0, 0.0, 1000000.0]).of(DType::I32), out: out(), factor: 5.0 },
        Pow { x: given([3, 2], [-3.0, 1.0, -1.0, 2.0, 9.0, 7.0]).of(DType::I64), out: out(), factor: -1.0 },
        Pow { x: integers_below(9, [2]), out: out(), factor: 0.5 }
            .fails("attribute `factor`: 0.5 is not representable in int64"),
        Pow { x: given([2], [1.0, 0.0]).of(DType::I32), out: out(), factor: -1.0 }
            .fails("`X`: the integer 0 has no negative power"),
    ]
);
