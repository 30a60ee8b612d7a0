//! Arithmetic and functions of lanes, for both dtypes.

use std::ops;

use super::{
    float::{Float, Lane, SelectMask, refuse_comparisons},
    fused, math,
};

macro_rules! lanes {
    ($($t:ident, $mul_add:path, $tanh:ident, $sin:ident, $cos:ident, $pow:ident;)*) => {$(
        lanes!(@ops $t, Add add, Sub sub, Mul mul, Div div);
        lanes!(@from $t, f32, f64);
        refuse_comparisons!([const FMA: bool] Lane<$t, FMA>);

        impl<const FMA: bool> ops::Neg for Lane<$t, FMA> {
            type Output = Self;
            #[inline(always)]
            fn neg(self) -> Self {
                Lane(-self.0)
            }
        }

        impl<const FMA: bool> Float for Lane<$t, FMA> {
            type Mask = bool;

            #[inline(always)]
            fn mul_add(self, b: Self, c: Self) -> Self {
                Lane(if FMA { self.0.mul_add(b.0, c.0) } else { $mul_add(self.0, b.0, c.0) })
            }
            #[inline(always)]
            fn gt(self, other: Self) -> SelectMask<Self> {
                SelectMask(self.0 > other.0)
            }
            #[inline(always)]
            fn equals(self, other: Self) -> SelectMask<Self> {
                SelectMask(self.0 == other.0)
            }
            #[inline(always)]
            fn select(mask: SelectMask<Self>, yes: Self, no: Self) -> Self {
                Lane(std::hint::select_unpredictable(mask.0, yes.0, no.0))
            }
            #[inline(always)]
            fn exp(self) -> Self {
                math::exp(self)
            }
            #[inline(always)]
            fn log(self) -> Self {
                math::log(self)
            }
            #[inline(always)]
            fn tanh(self) -> Self {
                math::$tanh(self)
            }
            #[inline(always)]
            fn expm1(self) -> Self {
                math::expm1(self)
            }
            #[inline(always)]
            fn log1p(self) -> Self {
                math::log1p(self)
            }
            #[inline(always)]
            fn erf(self) -> Self {
                math::erf(self)
            }
            #[inline(always)]
            fn normal_cdf(self) -> Self {
                math::normal_cdf(self)
            }
            #[inline(always)]
            fn sigmoid(self) -> Self {
                math::sigmoid(self)
            }
            #[inline(always)]
            fn gelu(self) -> Self {
                math::gelu(self)
            }
            #[inline(always)]
            fn gelu_tanh(self) -> Self {
                math::gelu_tanh(self)
            }
            #[inline(always)]
            fn sqrt(self) -> Self {
                Lane(self.0.sqrt())
            }
            #[inline(always)]
            fn abs(self) -> Self {
                Lane(self.0.abs())
            }
            #[inline(always)]
            fn sin(self) -> Self {
                math::$sin(self)
            }
            #[inline(always)]
            fn cos(self) -> Self {
                math::$cos(self)
            }
            #[inline(always)]
            fn pow(self, exponent: Self) -> Self {
                math::$pow(self, exponent)
            }
            #[inline(always)]
            fn floor(self) -> Self {
                Lane(self.0.floor())
            }
            #[inline(always)]
            fn round(self) -> Self {
                Lane(self.0.round())
            }
        }
    )*};
    (@from $t:ident, $($from:ident),*) => {$(
        impl<const FMA: bool> From<$from> for Lane<$t, FMA> {
            #[inline(always)]
            fn from(x: $from) -> Self {
                Lane(x as $t)
            }
        }
    )*};
    (@ops $t:ident, $($tr:ident $f:ident),*) => {$(
        impl<const FMA: bool> ops::$tr for Lane<$t, FMA> {
            type Output = Self;
            #[inline(always)]
            fn $f(self, other: Self) -> Self {
                Lane(ops::$tr::$f(self.0, other.0))
            }
        }
        impl<const FMA: bool> ops::$tr<f64> for Lane<$t, FMA> {
            type Output = Self;
            #[inline(always)]
            fn $f(self, constant: f64) -> Self {
                ops::$tr::$f(self, Lane(constant as $t))
            }
        }
    )*};
}
lanes! {
    f32, fused::mul_add_f32, tanh, sin, cos, pow_in_double;
    f64, fused::mul_add_f64, tanh_by_exp, sin_in_double, cos_in_double, pow;
}
