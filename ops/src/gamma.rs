//! The logarithm of the gamma function, and its derivatives.

use std::f64::consts::PI;

use autobwd::{Derived, Float, Pointwise, Var, check::*, op::DerivedFromInputs, register_op};

use crate::unary::unary_formula;

/// Where asymptotic series begin; smaller numbers are shifted by this integer.
const FAR: f64 = 8.0;

/// `c[0] + c[1] x + …`
#[inline(always)]
fn polynomial<F: Float, const N: usize>(x: F, coefficients: &[f64; N]) -> F {
    coefficients.iter().rev().fold(F::from(0.0), |sum, c| sum * x + *c)
}

/// The logarithm of the gamma function of numbers of at least 0, by the approximations of FreeBSD's `lgamma` (Sun
/// Microsystems, 1993).
#[inline(always)]
fn positive_lgamma<F: Float>(x: F) -> F {
    let (one, two) = (F::from(1.0), F::from(2.0));
    // Below 0.9, `lgamma(x) = lgamma(x + 1) - ln(x)`, so that three intervals remain: around 1, the minimum, and 2.
    let is_low = F::from(0.9).gt(x);
    let shifted = F::select(is_low, x + 1.0, x);
    let below = F::select(is_low, x.log(), F::from(0.0));
    let (from_two, from_minimum) = (two - shifted, shifted - MINIMUM);
    let from_one = F::select(is_low, x, x - one);
    let near_two = from_two * polynomial(from_two, &NEAR_TWO) - from_two * 0.5;
    let near_minimum = from_minimum * from_minimum * polynomial(from_minimum, &NEAR_MINIMUM) + AT_MINIMUM;
    let near_one = from_one * polynomial(from_one, &NEAR_ONE.0) / polynomial(from_one, &NEAR_ONE.1);
    let low = F::select(shifted.gt(F::from(1.73)), near_two, near_minimum);
    let low = F::select(F::from(1.23).gt(shifted), near_one - from_one * 0.5, low) - below;
    // From 2 to 8: the rational function is for `2..3`, with a product of the steps from there.
    let middle = x.max(two).min(F::from(FAR));
    let steps = middle.floor().min(F::from(FAR - 1.0));
    let y = middle - steps;
    let ratio = y * polynomial(y, &TWO_TO_THREE.0) / polynomial(y, &TWO_TO_THREE.1);
    let factors = (2..7).map(|i| F::select(steps.gt(F::from(f64::from(i))), y + f64::from(i), one));
    let medium = factors.fold(one, |product, factor| product * factor).log() + ratio + y * 0.5;
    let inverse = one / x.max(F::from(FAR));
    let tail = inverse * polynomial(inverse * inverse, &STIRLING) + HALF_LOG_TAIL;
    let high = (x - 0.5) * (x.log() - 1.0) + tail;
    F::select(two.gt(x), low, F::select(F::from(FAR).gt(x), medium, high))
}

/// `π` times the distance to the nearest integer.
#[inline(always)]
fn angle<F: Float>(x: F) -> F {
    (x - x.round()) * PI
}

/// The logarithm of the size of the gamma function; numbers below 0 are reflected.
#[inline(always)]
fn lgamma<F: Float>(x: F) -> F {
    let size = x.abs();
    let value = positive_lgamma(size);
    let reflected = (F::from(PI) / angle(size).sin().abs()).log() - size.log() - value;
    F::select(F::from(0.0).gt(x), reflected, value)
}

/// The derivative of `lgamma`.
#[inline(always)]
fn digamma<F: Float>(x: F) -> F {
    let (zero, one) = (F::from(0.0), F::from(1.0));
    let is_negative = zero.gt(x);
    let y = F::select(is_negative, one - x, x);
    let is_near = F::from(FAR).gt(y);
    let before = (0..FAR as i32).fold(zero, |sum, i| sum + one / (y + f64::from(i)));
    let far = F::select(is_near, y + FAR, y);
    let inverse = one / far;
    let square = inverse * inverse;
    let value = far.log() - inverse * 0.5 - square * polynomial(square, &DIGAMMA);
    let value = F::select(is_near, value - before, value);
    let angle = angle(x);
    let cotangent = angle.cos() / angle.sin();
    // There is no limit at a negative integer, where the sides differ.
    let cotangent = F::select(angle.equals(zero), zero / angle, cotangent);
    F::select(is_negative, value - cotangent * PI, value)
}

unary_formula!(
    /// Logarithm of the size of the gamma function: `out = ln |Γ(x)|`, infinite at 0, -1, -2, ….
    Lgamma(grad = LgammaGrad), |x| lgamma(x),
    samples [
        positive([2, 3]),
        given([8], [0.125, 0.875, 1.125, 1.5, 1.875, 2.5, 6.75, 40.0]),
        given([4], [-0.25, -1.5, -2.75, -7.375]),
        given([], [1e6]),
        given([3], [0.0, -2.0, 1.0]) => not_a_derivative("it is infinite"),
    ],
    /// `dx = dout * ψ(x)`, with `ψ` of `digamma`.
    LgammaGrad(grad = Derived), |x, dout| dout * digamma(x)
);

unary_formula!(
    /// Digamma function, the derivative of `lgamma`: `out = Γ'(x) / Γ(x)`. It is infinite at 0, and NaN at -1, -2, ….
    Digamma(grad = Derived), |x| digamma(x),
    samples [
        positive([2, 3]),
        given([5], [0.125, 1.5, 6.75, 9.0, 400.0]),
        given([4], [-0.25, -1.5, -2.75, -7.375]),
        uniform([0, 2]),
        given([2], [0.0, -2.0]) => not_a_derivative("it is infinite or undefined"),
    ]
);

/// The largest number of derivatives.
const MOST: i32 = 16;
/// The terms of a sum that are added one by one.
const TERMS: i32 = 16;
/// The least number that the asymptotic series are accurate for.
const LEAST: f64 = -8.0;

/// Hurwitz's zeta function `Σ 1 / (x + k)^s`, by the summation formula of Euler and Maclaurin.
#[inline(always)]
fn zeta<F: Float>(s: f64, x: F) -> F {
    let power = |x: F, exponent: f64| x.pow(F::from(exponent));
    let far = x + f64::from(TERMS);
    let rest = power(far, 1.0 - s) / (s - 1.0) + power(far, -s) * 0.5;
    let sum = (0..TERMS).fold(rest, |sum, k| sum + power(x + f64::from(k), -s));
    let (mut term, inverse, mut last) = (power(far, -s - 1.0) * s, F::from(1.0) / far, s);
    let mut sum = sum;
    for bernoulli in BERNOULLI {
        sum = sum + term * bernoulli;
        term = term * inverse * inverse * ((last + 1.0) * (last + 2.0));
        last += 2.0;
    }
    sum
}

/// Polygamma function, the `n`-th derivative of `digamma`: `out = (-1)^(n + 1) * n! * Σ 1 / (x + k)^(n + 1)`, summed over
/// all `k` from 0.
#[register_op(grad = DerivedFromInputs, pointwise)]
pub struct Polygamma<V = Var> {
    /// Any shape. Unless `n` is 0, numbers below -8 give NaN.
    #[input("x")]
    pub x: V,
    /// Same shape as `x`.
    #[output("out", inplace = x)]
    pub out: V,
    /// The number of derivatives.
    #[attr(min = 0, max = MOST)]
    pub n: i32,
}
impl<F: Float> Pointwise for Polygamma<F> {
    fn eval(&mut self) {
        if self.n == 0 {
            self.out = digamma(self.x);
            return;
        }
        let factorial: f64 = (1..=self.n).map(f64::from).product();
        let factor = if self.n % 2 == 0 { -factorial } else { factorial };
        let value = zeta(f64::from(self.n + 1), self.x) * factor;
        self.out = F::select(F::from(LEAST).gt(self.x), F::from(f64::NAN), value);
    }
}
autobwd::samples!(
    Polygamma,
    [
        Polygamma { x: positive([2, 3]), out: out(), n: 0 },
        Polygamma { x: positive([2, 3]), out: out(), n: 1 },
        Polygamma { x: given([4], [0.5, 3.0, 40.0, -0.5]), out: out(), n: 2 },
        Polygamma { x: between(1.0, 3.0, []), out: out(), n: 5 },
        Polygamma { x: given([3], [0.0, -9.0, 1.0]), out: out(), n: 1 }
            .not_a_derivative("it is infinite or undefined"),
        Polygamma { x: positive([2]), out: out(), n: -1 }.fails("attribute `n`"),
        Polygamma { x: positive([2]), out: out(), n: 17 }.fails("attribute `n`"),
    ]
);

/// The minimum of `lgamma`, and the value there.
const MINIMUM: f64 = 1.461_632_144_968_362_2;
const AT_MINIMUM: f64 = -0.121_486_290_535_849_61;
/// `ln(2π) / 2 - 1/2`
const HALF_LOG_TAIL: f64 = 0.418_938_533_204_672_7;

/// `lgamma(2 - y) = y * NEAR_TWO(y) - y / 2`
const NEAR_TWO: [f64; 12] = [
    0.07721566490153287,
    0.3224670334241136,
    0.06735230105312927,
    0.020580808432516733,
    0.007385550860814029,
    0.0028905138367341563,
    0.0011927076318336207,
    0.0005100697921535113,
    0.00022086279071390839,
    0.00010801156724758394,
    2.5214456545125733e-5,
    4.4864094961891516e-5,
];
/// `lgamma(MINIMUM + y) = y² * NEAR_MINIMUM(y) + AT_MINIMUM`
const NEAR_MINIMUM: [f64; 15] = [
    0.48383612272381005,
    -0.1475877229945939,
    0.06462494023913339,
    -0.032788541075985965,
    0.01797067508118204,
    -0.010314224129834144,
    0.006100538702462913,
    -0.0036845201678113826,
    0.0022596478090061247,
    -0.0014034646998923284,
    0.000881081882437654,
    -0.0005385953053567405,
    0.00031563207090362595,
    -0.00031275416837512086,
    0.0003355291926355191,
];
/// `lgamma(1 + y) = y * p(y) / q(y) - y / 2`
const NEAR_ONE: ([f64; 6], [f64; 6]) = (
    [
        -0.07721566490153287,
        0.6328270640250934,
        1.4549225013723477,
        0.9777175279633727,
        0.22896372806469245,
        0.013381091853678766,
    ],
    [
        1.0,
        2.4559779371304113,
        2.128489763798934,
        0.7692851504566728,
        0.10422264559336913,
        0.003217092422824239,
    ],
);
/// `lgamma(2 + y) = y * p(y) / q(y) + y / 2`
const TWO_TO_THREE: ([f64; 7], [f64; 7]) = (
    [
        -0.07721566490153287,
        0.21498241596060885,
        0.325778796408931,
        0.14635047265246445,
        0.02664227030336386,
        0.0018402845140733772,
        3.194753265841009e-5,
    ],
    [
        1.0,
        1.3920053346762105,
        0.7219355475671381,
        0.17193386563280308,
        0.01864591917156529,
        0.0007779424963818936,
        7.326684307446256e-6,
    ],
);
/// The series of Stirling in `1 / x²`, times `x`.
const STIRLING: [f64; 6] = [
    0.08333333333333297,
    -0.0027777777772877554,
    0.0007936505586430196,
    -0.00059518755745034,
    0.0008363399189962821,
    -0.0016309293409657527,
];
/// The series of `digamma` in `1 / x²`: Bernoulli numbers `B[2k] / (2k)`.
const DIGAMMA: [f64; 7] = [
    0.08333333333333333,
    -0.008333333333333333,
    0.003968253968253968,
    -0.004166666666666667,
    0.007575757575757576,
    -0.021092796092796094,
    0.08333333333333333,
];
/// Bernoulli numbers `B[2k] / (2k)!`.
const BERNOULLI: [f64; 7] = [
    0.08333333333333333,
    -0.001388888888888889,
    3.306878306878307e-5,
    -8.267195767195768e-7,
    2.08767569878681e-8,
    -5.284190138687493e-10,
    1.3382536530684679e-11,
];
