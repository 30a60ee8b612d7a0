//! Tensors filled with a constant.

use crate::{
    Buf, Cx, DType, Dims, Error, Infer, Kernel, Meta, OpDesc, Result, Var, ZeroGrad, register_op, sample::*,
    with_dtype,
};

use super::{AnyNumber, ConvertElement};

/// A constant tensor: `out = value`.
#[register_op(grad = ZeroGrad)]
pub struct FillConstant<V = Var> {
    /// Shape and dtype of the attributes.
    #[output]
    pub out: V,
    /// Dimensions.
    #[attr(default = [])]
    pub shape: Vec<i64>,
    /// Element type.
    #[attr(default = DType::F32)]
    pub dtype: DType,
    /// The number.
    #[attr(default = 0.0)]
    pub value: f32,
    /// The number as text, for values that `value` cannot represent; takes precedence unless empty.
    #[attr(default = "")]
    pub str_value: String,
}
impl FillConstant {
    /// The description of a tensor filled with a number that `value` represents exactly: without `str_value`.
    #[doc(hidden)]
    pub fn exactly(value: f32, shape: Vec<i64>, dtype: DType, out: Var) -> OpDesc {
        let mut desc = OpDesc::from(FillConstant { out, shape, dtype, value, str_value: String::new() });
        desc.attrs.remove("str_value");
        desc
    }
}
impl Infer for FillConstant<Meta> {
    fn infer(&mut self) -> Result<()> {
        let number = number(self.value, &self.str_value)?;
        self.out.set(self.dtype, shape_of_attr(&self.shape)?);
        exact(if self.str_value.is_empty() { "value" } else { "str_value" }, number, self.dtype)
    }
}
impl Kernel for FillConstant<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        fill(&mut self.out, number(self.value, &self.str_value)?)
    }
}
crate::samples!(
    FillConstant,
    [
        FillConstant { out: out(), shape: vec![2, 3], dtype: DType::F32, value: 1.5, str_value: "".into() },
        FillConstant { out: out(), shape: vec![], dtype: DType::F64, value: 0.0, str_value: "0.1".into() },
        FillConstant {
            out: out(),
            shape: vec![1],
            dtype: DType::I64,
            value: 0.0,
            str_value: "9007199254740993".into()
        },
        FillConstant { out: out(), shape: vec![3], dtype: DType::Bool, value: 1.0, str_value: "".into() },
        FillConstant { out: out(), shape: vec![0, 2], dtype: DType::I32, value: -1.0, str_value: "".into() },
        FillConstant { out: out(), shape: vec![2], dtype: DType::I32, value: 1.5, str_value: "".into() }
            .fails("attribute `value`: 1.5 is not representable in int32"),
        FillConstant {
            out: out(),
            shape: vec![2],
            dtype: DType::I64,
            value: 0.0,
            str_value: "9223372036854775808".into()
        }
        .fails("attribute `str_value`: 9223372036854776000 is not representable in int64"),
        FillConstant { out: out(), shape: vec![2, -1], dtype: DType::F32, value: 0.0, str_value: "".into() }
            .fails("attribute `shape`: -1 is not a dimension"),
        FillConstant { out: out(), shape: vec![2], dtype: DType::F32, value: 0.0, str_value: "ten".into() }
            .fails("attribute `str_value`: \"ten\" is not a number"),
    ]
);

fn number(value: f32, text: &str) -> Result<AnyNumber> {
    if text.is_empty() {
        return Ok(AnyNumber::Float(value.into()));
    }
    let number = text.parse().map(AnyNumber::Int).or_else(|_| text.parse().map(AnyNumber::Float));
    number.map_err(|_| Error::attr("str_value", format!("{text:?} is not a number")))
}

/// Rejects a number that an integer dtype cannot represent. A number other than 0 is true as a bool.
fn exact(attr: &str, number: AnyNumber, dtype: DType) -> Result<()> {
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

/// The shape in an attribute, with every dimension known.
pub fn shape_of_attr(shape: &[i64]) -> Result<Dims> {
    let dim =
        |n: &i64| usize::try_from(*n).map_err(|_| Error::attr("shape", format!("{n} is not a dimension")));
    shape.iter().map(dim).collect()
}

fn fill(out: &mut Buf<'_>, number: AnyNumber) -> Result<()> {
    with_dtype!(out.dtype(), T => out.slice_mut()?.fill(T::narrow(number)));
    Ok(())
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
        fill(&mut self.out, AnyNumber::Int(0))
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
        exact("value", AnyNumber::Float(self.value), self.out.dtype)
    }
}
impl Kernel for FillAnyLike<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        fill(&mut self.out, AnyNumber::Float(self.value))
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
