//! Tensors filled with a constant.

use crate::{
    Buf, Cx, DType, Dim, Dims, Error, GradCx, GradRule, Infer, Kernel, Meta, OpDesc, Result, Var,
    register_op, sample::*, with_dtype,
};

use super::{AnyNumber, ElementwiseAddGrad, check_number, constant_ints_of_tensor, fill_with};

/// A constant tensor: `out = value`.
#[register_op(grad = FillConstantGrad, infallible, any_dtype, primitive)]
pub struct FillConstant<V = Var> {
    /// The number, in place of attributes `value` and `str_value`: one element of the dtype.
    #[input]
    pub value_tensor: Option<V>,
    /// The shape, in place of attribute `shape`: int32 or int64, of one dimension.
    #[input(constant)]
    pub shape_tensor: Option<V>,
    /// The dimensions, in place of attribute `shape`: int32 or int64, one element each.
    #[input(constant)]
    pub shape_tensor_list: Vec<V>,
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
impl<V> FillConstant<V> {
    /// A scalar 0 in float32, for a struct with some fields given: `FillConstant { value: 2.0, ..FillConstant::of(New) }`.
    pub fn of(out: V) -> FillConstant<V> {
        FillConstant {
            value_tensor: None,
            shape_tensor: None,
            shape_tensor_list: vec![],
            out,
            shape: vec![],
            dtype: DType::F32,
            value: 0.0,
            str_value: String::new(),
        }
    }
}
impl FillConstant {
    /// The description of a tensor filled with a number that `value` represents exactly: without `str_value`.
    pub fn exactly(value: f32, shape: Vec<i64>, dtype: DType, out: Var) -> OpDesc {
        let mut desc = OpDesc::from(FillConstant { shape, dtype, value, ..FillConstant::of(out) });
        desc.attrs.remove("str_value");
        desc
    }
}
impl Infer for FillConstant<Meta> {
    fn infer(&mut self) -> Result<()> {
        let shape = given_shape(self.shape_tensor.as_ref(), &self.shape_tensor_list, &self.shape)?;
        self.out.set(self.dtype, shape);
        if let Some(value) = &self.value_tensor {
            value.one_element()?;
            return value.require(value.dtype == self.dtype, || format!("{} is needed", self.dtype));
        }
        let number = parse_number(self.value, &self.str_value)?;
        check_number(if self.str_value.is_empty() { "value" } else { "str_value" }, number, self.dtype)
    }
}
impl Kernel for FillConstant<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        let Some(value) = &self.value_tensor else {
            return fill_with(&mut self.out, parse_number(self.value, &self.str_value)?);
        };
        with_dtype!(self.dtype, T => {
            let value = value.slice::<T>()?.first().copied().unwrap_or_default();
            self.out.slice_mut()?.fill(value);
        });
        Ok(())
    }
}
crate::samples!(
    FillConstant,
    [
        fill_constant(vec![2, 3], DType::F64, 1.5, ""),
        fill_constant(vec![], DType::F64, 0.0, "0.1"),
        fill_constant(vec![1], DType::I64, 0.0, "9007199254740993"),
        fill_constant(vec![3], DType::Bool, 1.0, ""),
        fill_constant(vec![0, 2], DType::I32, -1.0, ""),
        FillConstant { shape_tensor: Some(integers(&[2, 3])), ..fill_constant(vec![], DType::F64, 1.5, "") },
        FillConstant {
            shape_tensor_list: vec![integers(&[3]), integers(&[2]).of(DType::I32)],
            ..fill_constant(vec![-1, 2], DType::I64, 2.0, "")
        },
        FillConstant {
            value_tensor: Some(positive([1]).of(DType::F64)),
            ..fill_constant(vec![2, 3], DType::F64, 0.0, "")
        },
        FillConstant {
            value_tensor: Some(between(-2.0, -1.0, []).of(DType::F64)),
            ..fill_constant(vec![4], DType::F64, 0.0, "")
        },
        FillConstant {
            value_tensor: Some(integers_below(9, [1])),
            shape_tensor: Some(integers(&[2])),
            ..fill_constant(vec![], DType::I64, 0.5, "")
        },
        FillConstant {
            value_tensor: Some(integers_below(9, [1])),
            ..fill_constant(vec![2], DType::I32, 0.0, "")
        }
        .fails("`ValueTensor`: int32 is needed"),
        FillConstant {
            value_tensor: Some(integers_below(9, [2])),
            ..fill_constant(vec![2], DType::I64, 0.0, "")
        }
        .fails("`ValueTensor`: one element is needed"),
        FillConstant { shape_tensor: Some(integers(&[2, -1])), ..fill_constant(vec![], DType::F32, 1.0, "") }
            .fails("attribute `shape`: -1 is not a dimension"),
        FillConstant { shape_tensor: Some(uniform([2])), ..fill_constant(vec![], DType::F32, 1.0, "") }
            .fails("`ShapeTensor`: int32 or int64 is needed"),
        fill_constant(vec![2], DType::I32, 1.5, "")
            .fails("attribute `value`: 1.5 is not representable in int32"),
        fill_constant(vec![2], DType::I64, 0.0, "9223372036854775808")
            .fails("attribute `str_value`: 9223372036854776000 is not representable in int64"),
        fill_constant(vec![2, -1], DType::F32, 0.0, "").fails("attribute `shape`: -1 is not a dimension"),
        fill_constant(vec![2], DType::F32, 0.0, "ten")
            .fails("attribute `str_value`: \"ten\" is not a number"),
    ]
);

fn fill_constant(shape: Vec<i64>, dtype: DType, value: f32, text: &str) -> FillConstant<Draw> {
    FillConstant { shape, dtype, value, str_value: text.into(), ..FillConstant::of(out()) }
}

/// `dvalue = Σ dout`
#[derive(Debug)]
pub struct FillConstantGrad;
impl GradRule<FillConstant> for FillConstantGrad {
    fn emit(fwd: &FillConstant, g: &mut GradCx<'_>) {
        let value = fwd.value_tensor.and_then(|value| Some((value, g.wanted(value)?)));
        if let Some((y, dy)) = value {
            let dout = g.grad(fwd.out);
            g.push(ElementwiseAddGrad { dout, x: dout, y, dx: None, dy: Some(dy), axis: -1 });
        }
    }
}

/// The shape that a tensor gives, or else a list of tensors, or else an attribute.
pub fn given_shape(tensor: Option<&Meta>, list: &[Meta], shape: &[i64]) -> Result<Dims> {
    let entries = constant_ints_of_tensor(tensor, list, shape.iter().copied())?;
    let attr = |i: usize| shape.get(i).filter(|n| entries.len() == shape.len() && **n >= 0);
    let dim = |(i, n): (usize, &Option<i64>)| match n.as_ref().or_else(|| attr(i)) {
        Some(n) => shape_of_attr(&[*n]).map(|dims| dims[0]),
        None => Ok(Dim::UNKNOWN),
    };
    entries.iter().enumerate().map(dim).collect()
}

/// The number of attributes `value` and `str_value`, which takes precedence unless empty.
///
/// # Errors
/// A text that is not a number.
pub fn parse_number(value: f32, text: &str) -> Result<AnyNumber> {
    if text.is_empty() {
        return Ok(AnyNumber::Float(value.into()));
    }
    let number = text.parse().map(AnyNumber::Int).or_else(|_| text.parse().map(AnyNumber::Float));
    number.map_err(|_| Error::attr("str_value", format!("{text:?} is not a number")))
}

/// The shape in an attribute, with every dimension known.
pub fn shape_of_attr(shape: &[i64]) -> Result<Dims> {
    let dim =
        |n: &i64| usize::try_from(*n).map_err(|_| Error::attr("shape", format!("{n} is not a dimension")));
    shape.iter().map(dim).collect()
}
