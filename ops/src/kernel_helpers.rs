//! Helpers shared by several operator families: numbers of any dtype, slices of tensors, shape rules.

use std::ops::AddAssign;

pub(crate) use autobwd::operators::{
    AnyNumber, ConvertElement, PART, broadcast, check_grad, convert, nth_part, outer_axis_inner, pieces,
    zip_broadcast,
};
use autobwd::{
    Buf, Cx, DType, Dims, Error, Meta, Result,
    op::{GemmElement, Mat, Vectorised},
    tensor::Element,
};

/// Floating-point types that kernels compute with: `f32` and `f64`. Functions come from the crate `libm`, so that their bits
/// do not depend on the system.
pub(crate) trait KernelFloat:
    GemmElement + Vectorised + num_traits::float::FloatCore + AddAssign + Into<f64>
{
    /// The nearest representable number.
    fn of(x: f64) -> Self;
    /// The number itself if `is` holds, else 0, without a branch.
    fn or_zero(self, is: bool) -> Self;
    /// `e^x`.
    fn exp(self) -> Self;
    /// The natural logarithm.
    fn ln(self) -> Self;
    /// `ln(1 + x)`.
    fn ln_1p(self) -> Self;
    /// The square root, correctly rounded.
    fn sqrt(self) -> Self;
}
impl KernelFloat for f32 {
    fn of(x: f64) -> f32 {
        x as f32
    }
    #[inline(always)]
    fn or_zero(self, is: bool) -> f32 {
        f32::from_bits(self.to_bits() & u32::from(is).wrapping_neg())
    }
    fn exp(self) -> f32 {
        libm::expf(self)
    }
    fn ln(self) -> f32 {
        libm::logf(self)
    }
    fn ln_1p(self) -> f32 {
        libm::log1pf(self)
    }
    #[inline(always)]
    fn sqrt(self) -> f32 {
        self.sqrt()
    }
}
impl KernelFloat for f64 {
    fn of(x: f64) -> f64 {
        x
    }
    #[inline(always)]
    fn or_zero(self, is: bool) -> f64 {
        f64::from_bits(self.to_bits() & u64::from(is).wrapping_neg())
    }
    fn exp(self) -> f64 {
        libm::exp(self)
    }
    fn ln(self) -> f64 {
        libm::log(self)
    }
    fn ln_1p(self) -> f64 {
        libm::log1p(self)
    }
    #[inline(always)]
    fn sqrt(self) -> f64 {
        self.sqrt()
    }
}

pub(crate) fn wide<T: KernelFloat>(x: T) -> f64 {
    x.into()
}

/// Bounds of all numbers.
pub(crate) fn unbounded<T: KernelFloat>() -> [T; 2] {
    [f64::NEG_INFINITY, f64::INFINITY].map(T::of)
}

/// The sum of the numbers; 0 for none. (`Iterator::sum` starts with -0.)
pub(crate) fn add_up(numbers: impl Iterator<Item = f64>) -> f64 {
    numbers.fold(0.0, |sum, x| sum + x)
}

/// Calls with the elements of `x` as `T`, converted into scratch memory if the dtype differs.
pub(crate) fn elements<T: ConvertElement, R>(
    cx: &Cx,
    x: &Buf<'_>,
    work: impl FnOnce(&[T]) -> Result<R>,
) -> Result<R> {
    if x.dtype() == T::DTYPE {
        return work(x.slice()?);
    }
    cx.scratch(x.numel(), |converted| {
        convert(cx, x, converted)?;
        work(converted)
    })
}

/// Bytes of scratch memory for `copies` conversions of `x` to that dtype; 0 if it already has it.
pub(crate) fn converted_bytes(x: &Buf<'_>, dtype: DType, copies: usize) -> usize {
    if x.dtype() == dtype { 0 } else { x.numel().saturating_mul(copies * dtype.size()) }
}

/// Requires that attribute `dtype` is one of positions and numbers.
pub(crate) fn number_dtype(dtype: DType) -> Result<()> {
    match dtype {
        DType::I32 | DType::I64 => Ok(()),
        _ => Err(Error::attr("dtype", format!("int64 or int32 is needed, not {dtype}"))),
    }
}

/// The axis that an attribute names; `None` for a scalar, which accepts -1 and 0.
pub(crate) fn axis_if_any(x: &Meta, axis: i64) -> Result<Option<usize>> {
    if x.rank() == 0 && matches!(axis, -1 | 0) { Ok(None) } else { x.axis("axis", axis).map(Some) }
}

/// Extents before, along and after an axis, as in [`outer_axis_inner`]; a scalar has one element along its axis.
pub(crate) fn lanes_along(x: &Buf<'_>, axis: i64) -> (usize, usize, usize) {
    if x.dims().is_empty() { (1, 1, 1) } else { outer_axis_inner(x.dims(), x.axis(axis)) }
}

/// The shape rule of a gradient: `dout` has the floating-point dtype of `x` and the dimensions of the result.
pub(crate) fn infer_grad(x: &Meta, dout: &Meta, dims: &Dims, dx: &mut Meta) -> Result<()> {
    x.float()?;
    check_grad(x, dout, dims)?;
    dx.like(x);
    Ok(())
}

/// The `i`-th chunk of `len` elements.
pub(crate) fn nth<T>(all: &[T], i: usize, len: usize) -> &[T] {
    &all[i * len..][..len]
}

/// The elements that a slot holds: all of a dense tensor, or those in the rows of a sparse one.
pub(crate) fn stored<'a, T: Element>(x: &'a Buf<'_>) -> Result<&'a [T]> {
    if x.is_sparse() { Ok(x.rows()?.values()) } else { x.slice() }
}

/// Checks that an attribute is a finite number.
pub(crate) fn finite(name: &str, number: f32) -> Result<()> {
    if number.is_finite() { Ok(()) } else { Err(Error::attr(name, format!("{number} is no finite number"))) }
}

/// Checks that a slot has one integer.
pub(crate) fn one_integer(x: &Meta) -> Result<()> {
    let whole = matches!(x.dtype, DType::I32 | DType::I64);
    x.require(whole && x.dims.numel().get().is_none_or(|n| n == 1), || "one integer is needed".into())
}

/// Parts of memory, of these lengths.
pub(crate) fn divided<T, const N: usize>(mut memory: &mut [T], lens: [usize; N]) -> [&mut [T]; N] {
    lens.map(|len| memory.split_off_mut(..len).unwrap_or_default())
}

/// A matrix of all these elements.
pub(crate) fn matrix<T>(data: &[T], cols: usize) -> Mat<'_, T> {
    Mat { data, rows: data.len() / cols.max(1), cols, transposed: false }
}

/// The only element of an integer slot.
pub(crate) fn whole_number(x: &Buf<'_>) -> Result<i64> {
    match x.dtype() {
        DType::I32 => Ok(i64::from(x.slice::<i32>()?[0])),
        DType::I64 => Ok(x.slice::<i64>()?[0]),
        _ => Err(x.wrong("one integer is needed")),
    }
}
