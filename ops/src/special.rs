//! `rsqrt`, `reciprocal`, `erf`, `erfinv`, `log1p`, `expm1` and `pow`, each defined by a formula.

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

/// `√π / 2`
const HALF_ROOT_OF_PI: f64 = 0.886_226_925_452_758;

/// Giles, "Approximating the erfinv function" (2011), table 5: powers of `w - 2.5` for `w = -ln(1 - x²)` below 5.
const CENTRE: [f64; 9] = [
    1.50140941,
    0.246640727,
    -0.00417768164,
    -0.00125372503,
    0.00021858087,
    -4.39150654e-6,
    -3.5233877e-6,
    3.43273939e-7,
    2.81022636e-8,
];
/// The same from 5 on: powers of `√w - 3`.
const TAIL: [f64; 9] = [
    2.83297682,
    1.00167406,
    0.00943887047,
    -0.0076224613,
    0.00573950773,
    -0.00367342844,
    0.00134934322,
    0.000100950558,
    -0.000200214257,
];

/// The number whose error function is `x`: the approximation of Giles, with two steps of Newton.
#[inline(always)]
fn erfinv<F: Float>(x: F) -> F {
    let one = F::from(1.0);
    let w = -((one - x) * (x + 1.0)).log();
    let (centre, tail) = (w - 2.5, w.sqrt() - 3.0);
    let near = CENTRE.iter().rev().fold(F::from(0.0), |sum, c| sum * centre + *c);
    let far = TAIL.iter().rev().fold(F::from(0.0), |sum, c| sum * tail + *c);
    let start = F::select(F::from(5.0).gt(w), near, far) * x;
    let step = |y: F| y - (y.erf() - x) * HALF_ROOT_OF_PI * (y * y).exp();
    // The ends are infinite, and numbers beyond them have none.
    let end = x / F::from(0.0);
    F::select(x.abs().equals(one), end, step(step(start)))
}

unary_formula!(
    /// Inverse error function: `erf(out) = x`. It is infinite at -1 and 1, and NaN beyond.
    Erfinv(grad = ErfinvGrad), |x| erfinv(x),
    samples [
        between(-0.9, 0.9, [2, 3]),
        given([5], [-1e-9, 0.0, 0.5, -0.9, 0.95]),
        given([3], [1.0, -1.0, 2.0]) => not_a_derivative("it is infinite or undefined"),
    ],
    /// `dx = dout * √π / 2 * exp(out²)`.
    ErfinvGrad(grad = Derived), |out, dout| dout * HALF_ROOT_OF_PI * (out * out).exp()
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
