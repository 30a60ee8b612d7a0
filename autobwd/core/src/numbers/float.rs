//! Floating point lanes of formulas.

use std::ops;

/// One lane of a formula: an `f32` or `f64` number.
///
/// Constants and attributes are written `F::from(self.beta)`, or directly on the right of an operator: `self.x * 2.0`.
/// Comparisons return a [`SelectMask`] for [`select`](Float::select), because an `if` would prevent vectorisation: `<`,
/// `>` and `==` do not compile (see [`UseSelectMaxOrMin`]).
///
/// Functions are computed without branches. The table has their largest errors, in units in the last place (ulp): in
/// `f32` over all of its numbers, in `f64` over some thousand numbers with exactly known results.
///
/// | | `f32` | `f64` |
/// |---|---|---|
/// | `exp` | 1.04 | 1 |
/// | `log` | 0.83 | 1 |
/// | `tanh` | 3.54 | 3 |
/// | `expm1` | 1.55 | 2 |
/// | `log1p` | 1.44 | 1 |
/// | `sigmoid` | 2.40 | 2 |
/// | `erf` | 1.12 | 1 |
/// | `normal_cdf` | 3.85 | 3 |
/// | `gelu` | 2.95 | 2 |
/// | `gelu_tanh` | 2.87 | 2 |
/// | `sin` | 2.74 | 1 |
/// | `cos` | 2.91 | 1 |
/// | `sqrt`, `1 / x` | 0.50 | 0 |
/// | `pow` | 0.50 | 1 |
///
/// In `f32`, `pow` was tested on some million pairs; it computes in double precision.
///
/// Results for infinities, NaN, zeros of both signs and subnormal numbers equal the results of `std`.
pub trait Float:
    Copy
    + From<f32>
    + From<f64>
    + PartialOrd<UseSelectMaxOrMin>
    + ops::Add<Output = Self>
    + ops::Sub<Output = Self>
    + ops::Mul<Output = Self>
    + ops::Div<Output = Self>
    + ops::Neg<Output = Self>
    + ops::Add<f64, Output = Self>
    + ops::Sub<f64, Output = Self>
    + ops::Mul<f64, Output = Self>
    + ops::Div<f64, Output = Self>
{
    /// The content of a [`SelectMask`].
    type Mask: Copy;

    /// `self * b + c`, rounded once: by an instruction, or where the machine has none, in software.
    fn mul_add(self, b: Self, c: Self) -> Self;
    /// `self > other`; false for NaN.
    fn gt(self, other: Self) -> SelectMask<Self>;
    /// `self == other`; false for NaN.
    fn equals(self, other: Self) -> SelectMask<Self>;
    /// `yes` where the mask is true, else `no`.
    fn select(mask: SelectMask<Self>, yes: Self, no: Self) -> Self;
    /// `e^x`.
    fn exp(self) -> Self;
    /// Natural logarithm.
    fn log(self) -> Self;
    /// Hyperbolic tangent.
    fn tanh(self) -> Self;
    /// `exp(x) - 1`, accurate near 0.
    fn expm1(self) -> Self;
    /// `ln(1 + x)`, accurate near 0.
    fn log1p(self) -> Self;
    /// Error function: `2 / √π` times the integral of `exp(-t²)` from 0.
    fn erf(self) -> Self;
    /// Cumulative distribution function of the standard normal distribution: `(1 + erf(x / √2)) / 2`, with full
    /// relative accuracy where it is small.
    fn normal_cdf(self) -> Self;
    /// `1 / (1 + exp(-x))`.
    fn sigmoid(self) -> Self;
    /// `x * normal_cdf(x)`.
    fn gelu(self) -> Self;
    /// `x * (1 + tanh(√(2 / π) * (x + 0.044715 * x³))) / 2`, which approximates `gelu`.
    fn gelu_tanh(self) -> Self;
    /// Square root.
    fn sqrt(self) -> Self;
    /// Absolute value.
    fn abs(self) -> Self;
    /// Sine of an angle in radians.
    fn sin(self) -> Self;
    /// Cosine of an angle in radians.
    fn cos(self) -> Self;
    /// `x^exponent`.
    fn pow(self, exponent: Self) -> Self;
    /// The largest integer that is not larger.
    fn floor(self) -> Self;
    /// The nearest integer, halves away from 0.
    fn round(self) -> Self;

    /// `self * factor`, and 0 where `factor` is 0, even if `self` is infinite or NaN: for the chain rule, in which the
    /// derivative of a constant is such a factor.
    #[inline(always)]
    fn scaled_by(self, factor: Self) -> Self {
        let zero = Self::from(0.0);
        Self::select(factor.equals(zero), zero, self * factor)
    }

    /// The maximum; `other` if `self` is NaN.
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        Self::select(self.gt(other), self, other)
    }
    /// The minimum; `other` if `self` is NaN.
    #[inline(always)]
    fn min(self, other: Self) -> Self {
        Self::select(other.gt(self), self, other)
    }
}

/// The result of a comparison of lanes, for [`Float::select`]. It is not a `bool`, since an `if` would prevent
/// vectorisation.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct SelectMask<F: Float>(pub(crate) F::Mask);

impl<F: Float<Mask = bool>> ops::BitAnd for SelectMask<F> {
    type Output = Self;
    #[inline(always)]
    fn bitand(self, other: Self) -> Self {
        SelectMask(self.0 & other.0)
    }
}
impl<F: Float<Mask = bool>> ops::BitOr for SelectMask<F> {
    type Output = Self;
    #[inline(always)]
    fn bitor(self, other: Self) -> Self {
        SelectMask(self.0 | other.0)
    }
}
impl<F: Float<Mask = bool>> ops::Not for SelectMask<F> {
    type Output = Self;
    #[inline(always)]
    fn not(self) -> Self {
        SelectMask(!self.0)
    }
}

/// The only type that a [`Float`] can be compared with by `<`, `>` and `==`; it has no values. Its name appears in the
/// compiler's error about an `if` in a formula.
///
/// Instead of `if x > y { a } else { b }`, write `F::select(x.gt(y), a, b)`; instead of `x == y`, `x.equals(y)`. There
/// are also `x.max(y)` and `x.min(y)`.
#[derive(Clone, Copy, Debug)]
pub enum UseSelectMaxOrMin {}

/// Comparisons that cannot be called.
macro_rules! refuse_comparisons {
    ([$($generics:tt)*] $lane:ty) => {
        impl<$($generics)*> PartialEq<crate::numbers::UseSelectMaxOrMin> for $lane {
            fn eq(&self, other: &crate::numbers::UseSelectMaxOrMin) -> bool {
                match *other {}
            }
        }
        impl<$($generics)*> PartialOrd<crate::numbers::UseSelectMaxOrMin> for $lane {
            fn partial_cmp(&self, other: &crate::numbers::UseSelectMaxOrMin) -> Option<std::cmp::Ordering> {
                match *other {}
            }
        }
    };
}
pub(super) use refuse_comparisons;

/// A number with a compile-time flag for the fused multiply-add instruction: without it, software computes the same
/// bits.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct Lane<T, const FMA: bool>(pub(crate) T);
