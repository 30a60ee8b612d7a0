//! Functions that are 0 around 0 (`hard_shrink`, `softshrink`, `tanh_shrink`, `thresholded_relu`), each defined by a
//! formula.

use autobwd::{Float, Pointwise, Var, check::*, op::DerivedFromInputs, register_op};

use crate::unary::unary_formula;

/// 0, or NaN for NaN.
#[inline(always)]
fn zero_at<F: Float>(x: F) -> F {
    F::select(x.equals(x), F::from(0.0), x)
}

/// Hard shrinkage: `out = x` where `|x| > threshold`, else 0.
///
/// At the thresholds, where it jumps, the gradient is 0.
#[register_op(grad = DerivedFromInputs, pointwise)]
pub struct HardShrink<V = Var> {
    /// Any shape.
    #[input]
    pub x: V,
    /// Same shape as `x`.
    #[output(inplace = x)]
    pub out: V,
    /// Size of the elements that are 0.
    #[attr(default = 0.5)]
    pub threshold: f32,
}
impl<F: Float> Pointwise for HardShrink<F> {
    fn eval(&mut self) {
        let (x, threshold) = (self.x, F::from(self.threshold));
        let inner = F::select((-threshold).gt(x), x, zero_at(x));
        self.out = F::select(x.gt(threshold), x, inner);
    }
}
autobwd::samples!(
    HardShrink,
    [
        HardShrink { x: given([2, 3], [-2.0, -0.625, -0.25, 0.25, 0.75, 3.0]), out: out(), threshold: 0.5 },
        HardShrink { x: away_from(0.0, [4]), out: out(), threshold: 0.0 },
        HardShrink { x: given([4], [-0.5, 0.5, 0.0, f64::NAN]), out: out(), threshold: 0.5 }
            .not_a_derivative("it jumps at the threshold"),
    ]
);

/// Soft shrinkage: `out = x - lambda` where `x > lambda`, `x + lambda` where `x < -lambda`, else 0.
///
/// At the kinks, the gradient is 0.
#[register_op(grad = DerivedFromInputs, pointwise)]
pub struct Softshrink<V = Var> {
    /// Any shape.
    #[input]
    pub x: V,
    /// Same shape as `x`.
    #[output(inplace = x)]
    pub out: V,
    /// How much elements shrink.
    #[attr(default = 0.5)]
    pub lambda: f32,
}
impl<F: Float> Pointwise for Softshrink<F> {
    fn eval(&mut self) {
        let (x, lambda) = (self.x, F::from(self.lambda));
        let inner = F::select((-lambda).gt(x), x + lambda, zero_at(x));
        self.out = F::select(x.gt(lambda), x - lambda, inner);
    }
}
autobwd::samples!(
    Softshrink,
    [
        Softshrink { x: given([2, 3], [-2.0, -0.625, -0.25, 0.25, 0.75, 3.0]), out: out(), lambda: 0.5 },
        Softshrink { x: away_from(0.0, [4]), out: out(), lambda: 0.0 },
        Softshrink { x: given([4], [-0.5, 0.5, 0.0, f64::NAN]), out: out(), lambda: 0.5 }
            .not_a_derivative("it has a kink at the threshold"),
    ]
);

unary_formula!(
    /// `tanh` shrinkage: `out = x - tanh(x)`.
    TanhShrink(grad = DerivedFromInputs), |x| {
        // `x - tanh(x) = (x * cosh(x) - sinh(x)) / cosh(x)`; near 0, the numerator is the sum of
        // `2 * k / (2 * k + 1)! * x ^ (2 * k + 1)`, which cancels nothing.
        let z = x * x;
        let near = SERIES.iter().rev().fold(F::from(0.0), |sum, c| sum.mul_add(z, F::from(*c)));
        let power = x.abs().min(F::from(NEAR)).exp();
        let near = x * z * near * 2.0 / (power + F::from(1.0) / power);
        F::select(F::from(NEAR).gt(x.abs()), near, x - x.tanh())
    },
    samples [between(-3.0, 3.0, [2, 3]), given([4], [-0.0, 1e-5, -0.125, 0.2])]
);

/// Where `tanh_shrink` is computed by a series.
const NEAR: f64 = 2.0;

/// `2 * k / (2 * k + 1)!` for `k` from 1.
const SERIES: [f64; 12] = {
    let (mut series, mut factorial, mut i) = ([0.0; 12], 1.0, 0);
    while i < series.len() {
        let even = 2.0 * (i + 1) as f64;
        factorial *= even * (even + 1.0);
        series[i] = even / factorial;
        i += 1;
    }
    series
};

/// Thresholded ReLU: `out = x` where `x > threshold`, else 0.
///
/// At the threshold, where it jumps, the gradient is 0.
#[register_op(grad = DerivedFromInputs, pointwise)]
pub struct ThresholdedRelu<V = Var> {
    /// Any shape.
    #[input]
    pub x: V,
    /// Same shape as `x`.
    #[output(inplace = x)]
    pub out: V,
    /// The largest element that is 0.
    #[attr(default = 1.0)]
    pub threshold: f32,
}
impl<F: Float> Pointwise for ThresholdedRelu<F> {
    fn eval(&mut self) {
        self.out = F::select(self.x.gt(F::from(self.threshold)), self.x, zero_at(self.x));
    }
}
autobwd::samples!(
    ThresholdedRelu,
    [
        ThresholdedRelu { x: given([2, 3], [-2.0, 0.5, 0.75, 1.5, 2.0, 3.0]), out: out(), threshold: 1.0 },
        ThresholdedRelu { x: given([3], [-2.0, -0.75, 0.25]), out: out(), threshold: -1.0 },
        ThresholdedRelu { x: given([2], [1.0, f64::NAN]), out: out(), threshold: 1.0 }
            .not_a_derivative("it jumps at the threshold"),
    ]
);
