//! `rsqrt`, `reciprocal`, `erf`, `log1p`, `expm1` and `pow`, each defined by a formula.

use autobwd::{
    DType, Derived, Float, Pointwise, Result, Var,
    check::*,
    op::{DerivedFromInputs, Integer, PointwiseInteger},
    register_op,
};

use crate::{min_max_pow::negative_power_of_zero, unary::unary_formula};

unary_formula!(
    /// Reciprocal square root: `out = 1 / √x`.
    Rsqrt(grad = RsqrtGrad), |x| F::from(1.0) / x.sqrt(),
    samples [positive([2, 3])],
    /// `dx = -dout * out³ / 2`.
    RsqrtGrad(grad = Derived), |out, dout| dout * -0.5 * out * out * out
);

unary_formula!(
    /// Reciprocal: `out = 1 / x`.
    Reciprocal(grad = ReciprocalGrad), |x| F::from(1.0) / x,
    samples [away_from(0.0, [2, 3])],
    /// `dx = -dout * out²`.
    ReciprocalGrad(grad = Derived), |out, dout| -dout * out * out
);

unary_formula!(
    /// Error function: `out = 2 / √π · ∫ exp(-t²) dt` from 0 to `x`.
    Erf(grad = DerivedFromInputs), |x| x.erf(),
    samples [between(-3.0, 3.0, [2, 3]), given([4], [-1e-9, 0.0, 0.92, 7.0])]
);

unary_formula!(
    /// `out = ln(1 + x)`, accurate near 0.
    Log1p(grad = DerivedFromInputs), |x| x.log1p(),
    samples [between(-0.5, 3.0, [2, 3]), given([2], [1e-9, -1e-12])]
);

unary_formula!(
    /// `out = exp(x) - 1`, accurate near 0.
    Expm1(grad = Expm1Grad), |x| x.expm1(),
    samples [between(-2.0, 2.0, [2, 3]), given([2], [1e-9, -1e-12])],
    /// `dx = dout * (out + 1)`.
    Expm1Grad(grad = Derived), |out, dout| dout * (out + 1.0)
);

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
