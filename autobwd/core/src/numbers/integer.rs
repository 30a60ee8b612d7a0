//! Integers for formulas.

use std::{
    num::Wrapping,
    ops::{Add, Mul, Neg, Sub},
};

use crate::{DType, Element, Error, Result};

/// One element of an integer formula: an `i32` or `i64` with wrapping sums, differences and products.
pub trait Integer:
    Copy
    + Default
    + Ord
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Neg<Output = Self>
    + Sized
{
    /// The smallest value.
    const MIN: Self;
    /// The largest value.
    const MAX: Self;

    /// The value of an attribute, given its name for errors.
    ///
    /// # Errors
    /// It is not an integer of this dtype.
    fn of(attr: &str, number: f64) -> Result<Self>;
    /// The nearest floating point number.
    fn to_f64(self) -> f64;
    /// Absolute value; the smallest integer wraps around to itself.
    fn abs(self) -> Self;
    /// The quotient, truncated; `None` for division by 0; the smallest integer divided by −1 wraps around.
    fn checked_div(self, by: Self) -> Option<Self>;
    /// The power; with a negative exponent it is truncated, and `None` for base 0.
    fn checked_pow(self, exponent: Self) -> Option<Self>;
}

macro_rules! integers {
    ($($t:ident),*) => {$(
        impl Integer for Wrapping<$t> {
            const MIN: Self = Wrapping($t::MIN);
            const MAX: Self = Wrapping($t::MAX);

            #[inline]
            fn of(attr: &str, number: f64) -> Result<Self> {
                let integer = number as $t;
                // The conversion of the largest integer to `f64` rounds up to a number out of range.
                let exact = integer as f64 == number && number != -($t::MIN as f64);
                if exact { Ok(Wrapping(integer)) } else { Err(no_integer(attr, number, $t::DTYPE)) }
            }
            #[inline]
            fn to_f64(self) -> f64 {
                self.0 as f64
            }
            #[inline]
            fn abs(self) -> Self {
                Wrapping(self.0.wrapping_abs())
            }
            #[inline]
            fn checked_div(self, by: Self) -> Option<Self> {
                (by.0 != 0).then(|| Wrapping(self.0.wrapping_div(by.0)))
            }
            #[inline]
            fn checked_pow(self, exponent: Self) -> Option<Self> {
                match (self.0, exponent.0) {
                    (0, ..0) => None,
                    (1, _) => Some(self),
                    (-1, n) => Some(if n % 2 == 0 { Wrapping(1) } else { self }),
                    (_, ..0) => Some(Wrapping(0)),
                    (_, mut n) => {
                        let (mut base, mut power) = (self, Wrapping(1));
                        while n > 0 {
                            if n % 2 == 1 {
                                power *= base;
                            }
                            base *= base;
                            n /= 2;
                        }
                        Some(power)
                    }
                }
            }
        }
    )*};
}
integers!(i32, i64);

#[cold]
fn no_integer(attr: &str, number: f64, dtype: DType) -> Error {
    let text =
        format!("{number} is not representable in {dtype}; `cast` the input to a floating point dtype first");
    Error::attr(attr, text)
}
