//! Elements of any dtype as numbers, and conversions between dtypes.

use super::PART;
use crate::{Bool, Buf, Cx, DType, Element, Error, Result, tensor::half_float::HalfFloat, with_dtype};

/// A number that represents every element of every dtype exactly.
#[derive(Clone, Copy, Debug)]
pub enum AnyNumber {
    /// An integer or a bool.
    Int(i64),
    /// A floating point number.
    Float(f64),
}

impl std::fmt::Display for AnyNumber {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            AnyNumber::Int(x) => x.fmt(f),
            AnyNumber::Float(x) => x.fmt(f),
        }
    }
}

/// Conversion of an element from and to [`AnyNumber`].
pub trait ConvertElement: Element {
    /// The exact number.
    fn widen(self) -> AnyNumber;
    /// The nearest element: integers wrap around; floating point numbers are truncated to integers, and saturate.
    fn narrow(wide: AnyNumber) -> Self;
}
macro_rules! numbers {
    ($($t:ty => $kind:ident),*) => {$(
        impl ConvertElement for $t {
            #[inline(always)]
            fn widen(self) -> AnyNumber {
                AnyNumber::$kind(self.into())
            }
            #[inline(always)]
            fn narrow(wide: AnyNumber) -> $t {
                match wide {
                    AnyNumber::Int(x) => x as $t,
                    AnyNumber::Float(x) => x as $t,
                }
            }
        }
    )*};
}
numbers!(u8 => Int, i32 => Int, i64 => Int, f32 => Float, f64 => Float);
impl<T: HalfFloat> ConvertElement for T {
    #[inline(always)]
    fn widen(self) -> AnyNumber {
        AnyNumber::Float(self.single().into())
    }
    #[inline(always)]
    fn narrow(wide: AnyNumber) -> T {
        match wide {
            AnyNumber::Int(x) => T::round(x as f32),
            AnyNumber::Float(x) => T::round_double(x),
        }
    }
}
impl ConvertElement for Bool {
    #[inline(always)]
    fn widen(self) -> AnyNumber {
        AnyNumber::Int(self.get().into())
    }
    #[inline(always)]
    fn narrow(wide: AnyNumber) -> Bool {
        match wide {
            AnyNumber::Int(x) => (x != 0).into(),
            AnyNumber::Float(x) => (x != 0.0).into(),
        }
    }
}

/// `out = x`, of another dtype or the same.
///
/// # Errors
/// Memory that cannot be read.
pub fn convert<Y: ConvertElement>(cx: &Cx, x: &Buf<'_>, out: &mut [Y]) -> Result<()> {
    with_dtype!(x.dtype(), X => {
        let x = x.slice::<X>()?;
        cx.chunks_mut(out, PART, |part, out| {
            out.iter_mut().zip(&x[part * PART..]).for_each(|(out, x)| *out = Y::narrow(x.widen()));
        });
    });
    Ok(())
}

/// Fills a tensor with a number.
///
/// # Errors
/// Memory that cannot be written.
pub fn fill_with(out: &mut Buf<'_>, number: AnyNumber) -> Result<()> {
    with_dtype!(out.dtype(), T => out.slice_mut()?.fill(T::narrow(number)));
    Ok(())
}

/// Rejects a number that an integer dtype cannot represent. A number other than 0 is true as a bool.
///
/// # Errors
/// Such a number.
pub fn check_number(attr: &str, number: AnyNumber, dtype: DType) -> Result<()> {
    if dtype.is_float() || dtype == DType::Bool {
        return Ok(());
    }
    with_dtype!(dtype, T => match (number, T::narrow(number).widen()) {
        (AnyNumber::Int(x), AnyNumber::Int(narrow)) if x == narrow => Ok(()),
        // The conversion of the largest int64 to `f64` rounds up to a number out of range.
        (AnyNumber::Float(x), AnyNumber::Int(narrow)) if x == narrow as f64 && x < 9223372036854775808.0 => Ok(()),
        _ => Err(Error::attr(attr, format!("{number} is not representable in {dtype}"))),
    })
}
