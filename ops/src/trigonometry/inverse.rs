//! Tangent, and the inverse functions.

use std::f64::consts::{FRAC_PI_2, FRAC_PI_4, PI};

use autobwd::{Derived, Float, Pointwise, Var, check::*, register_op};

use super::odd;
use crate::unary::unary_formula;

unary_formula!(
    /// Tangent of an angle in radians: `out = tan(x)`.
    Tan(grad = TanGrad), |x| x.sin() / x.cos(),
    samples [between(-1.25, 1.25, [2, 3]), given([3], [-0.0, 1e-9, 2.0]), uniform([])],
    /// `dx = dout / cos²(x)`.
    TanGrad(grad = Derived), |x, dout| dout / (x.cos() * x.cos())
);

/// The angle from 0 to π / 2 whose tangent is the positive `x`: the rational approximation of Moshier's Cephes library.
#[inline(always)]
fn positive_arctangent<F: Float>(x: F) -> F {
    const P: [f64; 5] = [
        -0.875_060_860_003_190_4,
        -16.157_537_187_333_652,
        -75.008_557_923_147_05,
        -122.886_668_449_013_61,
        -64.850_219_049_420_25,
    ];
    const Q: [f64; 6] = [
        1.0,
        24.858_464_901_423_062,
        165.027_009_831_698_85,
        432.881_060_491_290_27,
        485.390_399_635_913_7,
        194.550_657_148_261_4,
    ];
    // Bounds of the three ranges, the upper one the tangent of 3 / 8 π, and the digits of π / 2 below those of an `f64`.
    const FLAT: f64 = 0.66;
    const STEEP: f64 = 2.414_213_562_373_095;
    const LOWER: f64 = 6.123_233_995_736_766e-17;
    let (steep, flat) = (x.gt(F::from(STEEP)), F::from(FLAT).gt(x));
    let zero = F::from(0.0);
    let base = F::select(steep, F::from(FRAC_PI_2), F::select(flat, zero, F::from(FRAC_PI_4)));
    let lower = F::select(steep, F::from(LOWER), F::select(flat, zero, F::from(0.5 * LOWER)));
    let x = F::select(steep, F::from(-1.0) / x, F::select(flat, x, (x - 1.0) / (x + 1.0)));
    let z = x * x;
    let p = P[1..].iter().fold(F::from(P[0]), |p, c| p.mul_add(z, F::from(*c)));
    let q = Q[1..].iter().fold(F::from(Q[0]), |q, c| q.mul_add(z, F::from(*c)));
    base + ((x * (z * p / q) + x) + lower)
}

/// The angle from -π / 2 to π / 2 whose tangent is `x`.
#[inline(always)]
fn arctangent<F: Float>(x: F) -> F {
    odd(x, positive_arctangent(x.abs()))
}

/// `√(1 - x²)`, accurate near ±1.
#[inline(always)]
fn leg<F: Float>(x: F) -> F {
    ((F::from(1.0) - x) * (x + 1.0)).sqrt()
}

unary_formula!(
    /// Inverse tangent, in radians: `out = atan(x)`.
    Atan(grad = AtanGrad), |x| arctangent(x),
    samples [
        between(-4.0, 4.0, [2, 3]),
        given([5], [-0.0, 1e-9, -1.0, 0.66, 1e5]),
    ],
    /// `dx = dout / (1 + x²)`.
    AtanGrad(grad = Derived), |x, dout| dout / (x * x + 1.0)
);

unary_formula!(
    /// Inverse sine, in radians: `out = asin(x)`; NaN beyond ±1.
    Asin(grad = AsinGrad), |x| arctangent(x / (leg(x) + 1.0)) * 2.0,
    samples [between(-0.9, 0.9, [2, 3]), given([3], [-0.0, 1e-9, 0.9]), uniform([])],
    /// `dx = dout / √(1 - x²)`.
    AsinGrad(grad = Derived), |x, dout| dout / leg(x)
);

unary_formula!(
    /// Inverse cosine, in radians: `out = acos(x)`; NaN beyond ±1.
    Acos(grad = AcosGrad), |x| positive_arctangent(((F::from(1.0) - x) / (x + 1.0)).sqrt()) * 2.0,
    samples [between(-0.9, 0.9, [2, 3]), given([3], [0.0, 0.9, -0.9]), uniform([])],
    /// `dx = -dout / √(1 - x²)`.
    AcosGrad(grad = Derived), |x, dout| -dout / leg(x)
);

/// The angle of the point with ordinate `x1` and abscissa `x2`, from -π to π: `out = atan2(x1, x2)`.
#[register_op(grad = Atan2Grad, pointwise)]
pub struct Atan2<V = Var> {
    /// Any shape.
    #[input]
    pub x1: V,
    /// Same shape as `x1`.
    #[input]
    pub x2: V,
    /// Same shape as `x1`.
    #[output(inplace = x1)]
    pub out: V,
}
impl<F: Float> Pointwise for Atan2<F> {
    #[inline(always)]
    fn eval(&mut self) {
        let (zero, one, nan) = (F::from(0.0), F::from(1.0), F::from(f64::NAN));
        let (a, b) = (self.x1.abs(), self.x2.abs());
        // Two zeros and two infinities have no quotient.
        let equal = F::select(a.equals(zero), zero, one);
        let ratio = F::select(a.equals(b), equal, a.min(b) / a.max(b));
        let angle = positive_arctangent(ratio);
        let angle = F::select(a.gt(b), F::from(FRAC_PI_2) - angle, angle);
        let left = F::from(PI) - angle;
        // The reciprocal tells zeros of both signs apart.
        let [left, right] = [left, angle].map(|angle| {
            F::select(zero.gt(self.x1), -angle, F::select(zero.gt(one / self.x1), -angle, angle))
        });
        let angle = F::select(zero.gt(self.x2), left, F::select(zero.gt(one / self.x2), left, right));
        self.out = F::select(a.equals(a), F::select(b.equals(b), angle, nan), nan);
    }
}
autobwd::samples!(
    Atan2,
    [
        Atan2 { x1: away_from(0.0, [2, 3]), x2: away_from(0.0, [2, 3]), out: out() },
        Atan2 {
            x1: given([6], [1.0, -1.0, 0.5, -3.0, 0.125, -2.0]),
            x2: given([6], [0.25, -0.5, -4.0, 0.125, -1.0, 1e5]),
            out: out()
        },
        Atan2 { x1: uniform([0, 3]), x2: uniform([0, 3]), out: out() },
        Atan2 { x1: given([2], [0.0, -0.0]), x2: given([2], [-0.0, 0.0]), out: out() }
            .not_a_derivative("the angle of 0 is undefined"),
        Atan2 { x1: uniform([2, 3]), x2: uniform([3]), out: out() }.fails("`X2`: shape [3] does not match"),
    ]
);

/// `dx1 = dout * x2 / (x1² + x2²)`, `dx2 = -dout * x1 / (x1² + x2²)`.
#[register_op(grad_of = Atan2, grad = Derived, pointwise)]
pub struct Atan2Grad<V = Var> {
    pub x1: V,
    pub x2: V,
    pub dout: V,
    #[output(inplace = dout, like = x1)]
    pub dx1: Option<V>,
    #[output(like = x2)]
    pub dx2: Option<V>,
}
impl<F: Float> Pointwise for Atan2Grad<F> {
    fn eval(&mut self) {
        let quotient = self.dout / (self.x1 * self.x1 + self.x2 * self.x2);
        self.dx1 = self.dx1.map(|_| quotient * self.x2);
        self.dx2 = self.dx2.map(|_| -(quotient * self.x1));
    }
}
