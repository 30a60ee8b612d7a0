//! Functions that are 0 around 0 (`hard_shrink`, `softshrink`, `tanh_shrink`, `thresholded_relu`), each defined by a
//! formula.

use autobwd::{Float, Pointwise, Var, check::*, op::DerivedFromInputs, register_op};

/// 0, or NaN for NaN.
#[inline(always)]
fn zero_at<F: Float>(x: F) -> F {
    F::select(x.equals(x), F::from(0.0), x)
}

/// Hard shrinkage: `out = x` where `|x| > threshold`, else 0.
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

/// `tanh` shrinkage: `out = x - tanh(x)`.
#[register_op(grad = DerivedFromInputs, pointwise)]
pub struct TanhShrink<V = Var> {
    /// Any shape.
    #[input]
    pub x: V,
    /// Same shape as `x`.
    #[output(inplace = x)]
    pub out: V,
}
impl<F: Float> Pointwise for TanhShrink<F> {
    #[inline(always)]
    fn eval(&mut self) {
        // The Taylor series of `x - tanh(x)`, divided by `x³`.
        const SERIES: [f64; 10] = [
            -18888466084.0 / 194896477400625.0,
            443861162.0 / 1856156927625.0,
            -6404582.0 / 10854718875.0,
            929569.0 / 638512875.0,
            -21844.0 / 6081075.0,
            1382.0 / 155925.0,
            -62.0 / 2835.0,
            17.0 / 315.0,
            -2.0 / 15.0,
            1.0 / 3.0,
        ];
        let x = self.x;
        let z = x * x;
        let series = SERIES[1..].iter().fold(F::from(SERIES[0]), |sum, c| sum.mul_add(z, F::from(*c)));
        self.out = F::select(F::from(0.25).gt(x.abs()), x * z * series, x - x.tanh());
    }
}
autobwd::samples!(
    TanhShrink,
    [
        TanhShrink { x: between(-3.0, 3.0, [2, 3]), out: out() },
        TanhShrink { x: given([4], [-0.0, 1e-5, -0.125, 0.2]), out: out() },
    ]
);

/// Thresholded ReLU: `out = x` where `x > threshold`, else 0.
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
