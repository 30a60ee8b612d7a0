//! Forward-mode differentiation of formulas by dual numbers.

use std::ops::{Add, Div, Mul, Neg, Sub};

use super::{Float, SelectMask, float::refuse_comparisons};

/// A dual number: a number and its derivative with respect to one input of a formula. Evaluated on it, a formula
/// computes both.
///
/// ```
/// use autobwd::{Float, op::Dual};
/// fn formula<F: Float>(x: F) -> F {
///     x * x.exp()
/// }
/// # // Lanes themselves are made inside: the check here goes through a registered operator in the tests.
/// # fn uses<F: Float>(x: F) -> F { formula(Dual::variable(x)).derivative }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Dual<F> {
    /// The number.
    pub value: F,
    /// Its derivative.
    pub derivative: F,
}

impl<F: Float> Dual<F> {
    /// The input with respect to which the formula is differentiated.
    #[inline(always)]
    pub fn variable(value: F) -> Dual<F> {
        Dual { value, derivative: F::from(1.0) }
    }

    /// A value that does not depend on that input.
    #[inline(always)]
    pub fn constant(value: F) -> Dual<F> {
        Dual { value, derivative: F::from(0.0) }
    }
}

impl<F: Float> Add for Dual<F> {
    type Output = Self;
    #[inline(always)]
    fn add(self, o: Self) -> Self {
        Dual { value: self.value + o.value, derivative: self.derivative + o.derivative }
    }
}
impl<F: Float> Sub for Dual<F> {
    type Output = Self;
    #[inline(always)]
    fn sub(self, o: Self) -> Self {
        Dual { value: self.value - o.value, derivative: self.derivative - o.derivative }
    }
}
impl<F: Float> Mul for Dual<F> {
    type Output = Self;
    #[inline(always)]
    fn mul(self, o: Self) -> Self {
        let derivative = self.derivative.mul_add(o.value, self.value * o.derivative);
        Dual { value: self.value * o.value, derivative }
    }
}
impl<F: Float> Div for Dual<F> {
    type Output = Self;
    #[inline(always)]
    fn div(self, o: Self) -> Self {
        let value = self.value / o.value;
        Dual { value, derivative: (self.derivative - value * o.derivative) / o.value }
    }
}
impl<F: Float> Neg for Dual<F> {
    type Output = Self;
    #[inline(always)]
    fn neg(self) -> Self {
        Dual { value: -self.value, derivative: -self.derivative }
    }
}

impl<F: Float> From<f32> for Dual<F> {
    #[inline(always)]
    fn from(x: f32) -> Self {
        Dual::constant(F::from(x))
    }
}
impl<F: Float> From<f64> for Dual<F> {
    #[inline(always)]
    fn from(x: f64) -> Self {
        Dual::constant(F::from(x))
    }
}
refuse_comparisons!([F: Float] Dual<F>);

// A constant has derivative 0, so the derivative of the result does not depend on its value.
impl<F: Float> Add<f64> for Dual<F> {
    type Output = Self;
    #[inline(always)]
    fn add(self, constant: f64) -> Self {
        Dual { value: self.value + constant, derivative: self.derivative }
    }
}
impl<F: Float> Sub<f64> for Dual<F> {
    type Output = Self;
    #[inline(always)]
    fn sub(self, constant: f64) -> Self {
        Dual { value: self.value - constant, derivative: self.derivative }
    }
}
impl<F: Float> Mul<f64> for Dual<F> {
    type Output = Self;
    #[inline(always)]
    fn mul(self, constant: f64) -> Self {
        Dual { value: self.value * constant, derivative: self.derivative * constant }
    }
}
impl<F: Float> Div<f64> for Dual<F> {
    type Output = Self;
    #[inline(always)]
    fn div(self, constant: f64) -> Self {
        Dual { value: self.value / constant, derivative: self.derivative / constant }
    }
}

/// Density of the standard normal distribution.
#[inline(always)]
fn normal_density<F: Float>(x: F) -> F {
    const FRAC_1_SQRT_2PI: f64 = 0.398_942_280_401_432_7;
    (x * -0.5 * x).exp() * FRAC_1_SQRT_2PI
}

/// `x` clamped to `[-end, end]`; NaN stays. Where derivatives are constant, this avoids products of 0 with infinity.
#[inline(always)]
fn within<F: Float>(x: F, end: f64) -> F {
    F::from(end).min(F::from(-end).max(x))
}

/// The derivative of `x ^ y` with respect to `x`: 0 for the exponent 0, even where `x` is 0 or NaN.
#[inline(always)]
fn power_slope<F: Float>(x: F, y: F) -> F {
    x.pow(y - 1.0).scaled_by(y)
}

/// The derivative of `x ^ y` with respect to `y`: `ln(x) * x ^ y`, 0 for a negative `x`, and for `x = 0` unless `y` is
/// negative.
#[inline(always)]
fn power_slope_in_exponent<F: Float>(x: F, y: F) -> F {
    let (zero, slope) = (F::from(0.0), x.log() * x.pow(y));
    // NaN stays.
    let flat = F::select(y.equals(y), zero, y);
    let at_zero = F::select(x.equals(zero), F::select(zero.gt(y), slope, flat), slope);
    F::select(zero.gt(x), flat, at_zero)
}

impl<F: Float> Float for Dual<F> {
    type Mask = F::Mask;

    #[inline(always)]
    fn mul_add(self, b: Self, c: Self) -> Self {
        let derivative = self.derivative.mul_add(b.value, self.value.mul_add(b.derivative, c.derivative));
        Dual { value: self.value.mul_add(b.value, c.value), derivative }
    }
    #[inline(always)]
    fn gt(self, o: Self) -> SelectMask<Self> {
        SelectMask(self.value.gt(o.value).0)
    }
    #[inline(always)]
    fn equals(self, o: Self) -> SelectMask<Self> {
        SelectMask(self.value.equals(o.value).0)
    }
    #[inline(always)]
    fn select(mask: SelectMask<Self>, yes: Self, no: Self) -> Self {
        let mask = SelectMask(mask.0);
        Dual {
            value: F::select(mask, yes.value, no.value),
            derivative: F::select(mask, yes.derivative, no.derivative),
        }
    }
    #[inline(always)]
    fn exp(self) -> Self {
        let value = self.value.exp();
        Dual { value, derivative: self.derivative * value }
    }
    #[inline(always)]
    fn log(self) -> Self {
        Dual { value: self.value.log(), derivative: self.derivative / self.value }
    }
    #[inline(always)]
    fn tanh(self) -> Self {
        let value = self.value.tanh();
        Dual { value, derivative: self.derivative * (F::from(1.0) - value * value) }
    }
    #[inline(always)]
    fn expm1(self) -> Self {
        let value = self.value.expm1();
        Dual { value, derivative: self.derivative * (value + 1.0) }
    }
    #[inline(always)]
    fn log1p(self) -> Self {
        Dual { value: self.value.log1p(), derivative: self.derivative / (self.value + 1.0) }
    }
    #[inline(always)]
    fn erf(self) -> Self {
        let slope = (-self.value * self.value).exp() * std::f64::consts::FRAC_2_SQRT_PI;
        Dual { value: self.value.erf(), derivative: self.derivative * slope }
    }
    #[inline(always)]
    fn normal_cdf(self) -> Self {
        Dual { value: self.value.normal_cdf(), derivative: self.derivative * normal_density(self.value) }
    }
    #[inline(always)]
    fn gelu(self) -> Self {
        let x = within(self.value, 40.0);
        let slope = x.mul_add(normal_density(x), x.normal_cdf());
        Dual { value: self.value.gelu(), derivative: self.derivative * slope }
    }
    #[inline(always)]
    fn gelu_tanh(self) -> Self {
        // 2 √(2 / π), and 0.044715 times it.
        let (a, b) = (F::from(1.595_769_121_605_730_8), F::from(0.071_354_816_272_600_25));
        let x = within(self.value, 22.0);
        let bx2 = b * x * x;
        let (s, slope) = ((x * (a + bx2)).sigmoid(), F::from(3.0).mul_add(bx2, a));
        let slope = (s * x * slope).mul_add(F::from(1.0) - s, s);
        Dual { value: self.value.gelu_tanh(), derivative: self.derivative * slope }
    }
    #[inline(always)]
    fn sqrt(self) -> Self {
        let value = self.value.sqrt();
        Dual { value, derivative: self.derivative / (value + value) }
    }
    /// The derivative at 0 is defined as 0.
    #[inline(always)]
    fn abs(self) -> Self {
        let zero = F::from(0.0);
        let negative = F::select(zero.gt(self.value), -self.derivative, zero);
        Dual {
            value: self.value.abs(),
            derivative: F::select(self.value.gt(zero), self.derivative, negative),
        }
    }
    #[inline(always)]
    fn sin(self) -> Self {
        Dual { value: self.value.sin(), derivative: self.derivative * self.value.cos() }
    }
    #[inline(always)]
    fn cos(self) -> Self {
        Dual { value: self.value.cos(), derivative: -self.derivative * self.value.sin() }
    }
    /// The derivative with respect to the exponent is 0 for a negative base. A base or an exponent whose derivative is 0
    /// adds nothing, even where the other factor is infinite.
    #[inline(always)]
    fn pow(self, exponent: Self) -> Self {
        let value = self.value.pow(exponent.value);
        let in_base = power_slope(self.value, exponent.value).scaled_by(self.derivative);
        let in_exponent = power_slope_in_exponent(self.value, exponent.value).scaled_by(exponent.derivative);
        Dual { value, derivative: in_base + in_exponent }
    }
    /// The rule of products: `factor` may have a derivative where it is 0.
    #[inline(always)]
    fn scaled_by(self, factor: Self) -> Self {
        let derivative = self.derivative.scaled_by(factor.value) + self.value.scaled_by(factor.derivative);
        Dual { value: self.value.scaled_by(factor.value), derivative }
    }
    #[inline(always)]
    fn floor(self) -> Self {
        Dual::constant(self.value.floor())
    }
    #[inline(always)]
    fn round(self) -> Self {
        Dual::constant(self.value.round())
    }
    #[inline(always)]
    fn sigmoid(self) -> Self {
        let value = self.value.sigmoid();
        Dual { value, derivative: self.derivative * value * (F::from(1.0) - value) }
    }
}
