//! Tensors with the shape of another, filled with a constant.

use crate::{
    Buf, Composition, Cx, DType, Expr, Infer, Kernel, Meta, New, Result, Var, ZeroGrad, emit, register_op,
    sample::*,
};

use super::{AnyNumber, FillConstant, ShapeOp, check_number, fill_with};

/// Zeros: `out = 0`.
#[register_op(grad = ZeroGrad, infallible, any_dtype)]
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
impl Composition for FillZerosLike<Expr> {
    fn compose(&mut self) {
        self.out = filled_like(&self.x, self.x.dtype(), 0.0);
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
#[register_op(grad = ZeroGrad, infallible, any_dtype)]
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
impl Composition for FillAnyLike<Expr> {
    fn compose(&mut self) {
        self.out = filled_like(&self.x, self.dtype.unwrap_or(self.x.dtype()), self.value);
    }
}

/// A number everywhere, in the shape of `x`.
fn filled_like(x: &Expr, dtype: DType, value: f64) -> Expr {
    let shape: Vec<i64> = x.dims().iter().map(|dim| dim.wire()).collect();
    let is_open = shape.contains(&-1);
    let shape_tensor = is_open.then(|| emit(ShapeOp { input: x.into(), out: New }).out.into());
    // With a decimal point, so that -0 has its sign.
    let str_value = format!("{value:?}");
    x.builder().emit(FillConstant { shape, shape_tensor, dtype, str_value, ..FillConstant::of(New) }).out
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
