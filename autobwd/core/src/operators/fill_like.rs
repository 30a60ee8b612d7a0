//! Tensors with the shape of another, filled with a constant.

use crate::{
    Buf, Cx, DType, Error, Infer, Kernel, Meta, Result, Var, ZeroGrad, register_op, sample::*, with_dtype,
};

use super::{AnyNumber, ConvertElement};

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

/// Zeros: `out = 0`.
#[register_op(grad = ZeroGrad)]
pub struct FillZerosLike<V = Var> {
    /// Any shape, any dtype.
    #[input(shape_only)]
    pub x: V,
    /// Same shape and dtype.
    #[output(like = x)]
    pub out: V,
}
impl Kernel for FillZerosLike<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        fill_with(&mut self.out, AnyNumber::Int(0))
    }
}
crate::samples!(
    FillZerosLike,
    [
        FillZerosLike { x: uniform([2, 3]), out: out() },
        FillZerosLike { x: uniform([]), out: out() },
        FillZerosLike { x: integers_below(5, [3]), out: out() },
    ]
);

/// A constant tensor: `out = value`.
#[register_op(grad = ZeroGrad)]
pub struct FillAnyLike<V = Var> {
    /// Any shape, any dtype.
    #[input(shape_only)]
    pub x: V,
    /// Same shape.
    #[output]
    pub out: V,
    /// The number.
    #[attr(default = 0.0)]
    pub value: f64,
    /// Element type; `None`, −1 in programs, means that of `x`.
    #[attr(default = None)]
    pub dtype: Option<DType>,
}
impl Infer for FillAnyLike<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.out.set(self.dtype.unwrap_or(self.x.dtype), self.x.dims.clone());
        check_number("value", AnyNumber::Float(self.value), self.out.dtype)
    }
}
impl Kernel for FillAnyLike<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        fill_with(&mut self.out, AnyNumber::Float(self.value))
    }
}
crate::samples!(
    FillAnyLike,
    [
        FillAnyLike { x: uniform([2, 3]), out: out(), value: 2.5, dtype: None },
        FillAnyLike { x: uniform([0, 3]), out: out(), value: 1.0, dtype: None },
        FillAnyLike { x: integers_below(5, [3]), out: out(), value: 7.0, dtype: None },
        FillAnyLike { x: uniform([]), out: out(), value: -1.0, dtype: Some(DType::I32) },
        FillAnyLike { x: uniform([3]).of(DType::F64), out: out(), value: 0.1, dtype: None },
        FillAnyLike { x: integers_below(3, [2]), out: out(), value: 0.5, dtype: None }
            .fails("attribute `value`: 0.5 is not representable in int64"),
        FillAnyLike { x: uniform([2]), out: out(), value: 256.0, dtype: Some(DType::U8) }
            .fails("attribute `value`: 256 is not representable in uint8"),
    ]
);
