//! Constant tensors.

use autobwd::{
    Buf, Composition, Cx, DType, Dims, Error, Expr, Infer, Kernel, Meta, New, NoGrad, Result, Var, ZeroGrad,
    check::*,
    op::with_dtype,
    operators::{check_number, fill_with, parse_number, shape_of_attr},
    register_op,
    tensor::Dim,
};

pub use autobwd::operators::{FillAnyLike, FillConstant, FillZerosLike};

use crate::{
    Math,
    kernel_helpers::{AnyNumber, ConvertElement},
    math::{DimExpr, filled, like, positions},
};

/// A constant tensor in shape and dtype of another: `out = value`.
#[register_op(grad = ZeroGrad, composed)]
pub struct FillAny<V = Var> {
    /// Any shape, any dtype.
    #[input(shape_only)]
    pub x: V,
    /// Same shape as `x`.
    #[output(like = x)]
    pub out: V,
    /// The number, which the dtype has.
    #[attr(default = 0.0)]
    pub value: f32,
}
impl Composition for FillAny<Expr> {
    fn compose(&mut self) {
        self.out = like(&self.x, self.value.into());
    }
}
autobwd::samples!(
    FillAny,
    [
        FillAny { x: uniform([2, 3]), out: out(), value: -1.5 },
        FillAny { x: integers_below(9, [4]).of(DType::I32), out: out(), value: 7.0 },
        FillAny { x: integers_below(2, [2]).of(DType::Bool), out: out(), value: 1.0 },
        FillAny { x: uniform([]), out: out(), value: 0.25 },
        FillAny { x: uniform([0, 3]), out: out(), value: 1.0 },
    ]
);

/// A constant tensor with one dimension of another tensor: `out = value`.
#[register_op(grad = ZeroGrad, infallible, any_dtype)]
pub struct FillConstantBatchSizeLike<V = Var> {
    /// Any shape, any dtype.
    #[input(shape_only)]
    pub input: V,
    /// Shape and dtype of the attributes, with dimension `input_dim_idx` of `input` as dimension `output_dim_idx`.
    #[output]
    pub out: V,
    /// Dimensions.
    #[attr]
    pub shape: Vec<i32>,
    /// The dimension of `input`.
    #[attr(default = 0)]
    pub input_dim_idx: i32,
    /// The dimension of `out`.
    #[attr(default = 0)]
    pub output_dim_idx: i32,
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
impl Infer for FillConstantBatchSizeLike<Meta> {
    fn infer(&mut self) -> Result<()> {
        let from = self.input.axis("input_dim_idx", self.input_dim_idx.into())?;
        let refuse = || Error::attr("output_dim_idx", "a dimension of `shape` is needed");
        let to = usize::try_from(self.output_dim_idx).map_err(|_| refuse())?;
        let (mut dims, all) = (Dims::default(), &self.shape);
        all.get(to).ok_or_else(refuse)?;
        for (axis, n) in all.iter().enumerate() {
            let own = |n: i32| shape_of_attr(&[n.into()]).map(|dims| dims[0]);
            dims.push(if axis == to { self.input.dims[from] } else { own(*n)? });
        }
        self.out.set(self.dtype, dims);
        let attr = if self.str_value.is_empty() { "value" } else { "str_value" };
        check_number(attr, parse_number(self.value, &self.str_value)?, self.dtype)
    }
}
impl Kernel for FillConstantBatchSizeLike<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        fill_with(&mut self.out, parse_number(self.value, &self.str_value)?)
    }
}
impl Composition for FillConstantBatchSizeLike<Expr> {
    fn compose(&mut self) {
        let mut dims: Vec<DimExpr> = self.shape.iter().map(|n| i64::from(*n).into()).collect();
        dims[self.output_dim_idx as usize] = self.input.dim(self.input_dim_idx);
        let value = match &*self.str_value {
            "" => f64::from(self.value).to_string(),
            text => text.to_string(),
        };
        self.out = filled(self.input.builder(), self.dtype, &value, &dims);
    }
}
autobwd::samples!(
    FillConstantBatchSizeLike,
    [
        batch_size_like(uniform([4, 3]), vec![-1, 2], DType::F32),
        FillConstantBatchSizeLike {
            input_dim_idx: 1,
            output_dim_idx: 1,
            value: 3.0,
            ..batch_size_like(uniform([4, 3]), vec![7, -1], DType::I32)
        },
        FillConstantBatchSizeLike {
            str_value: "0.1".into(),
            ..batch_size_like(integers_below(9, [2]), vec![1], DType::F64)
        },
        batch_size_like(uniform([4]), vec![2, -1], DType::F32)
            .fails("attribute `shape`: -1 is not a dimension"),
        batch_size_like(uniform([]), vec![2], DType::F32).fails("attribute `input_dim_idx` = 0"),
        FillConstantBatchSizeLike {
            output_dim_idx: 2,
            ..batch_size_like(uniform([4]), vec![2, 3], DType::F32)
        }
        .fails("attribute `output_dim_idx`: a dimension of `shape` is needed"),
        batch_size_like(uniform([4]), vec![2], DType::I32)
            .fails("attribute `value`: 2.5 is not representable"),
        FillConstantBatchSizeLike {
            str_value: "x".into(),
            ..batch_size_like(uniform([4]), vec![2], DType::F32)
        }
        .fails("attribute `str_value`: \"x\" is not a number"),
    ]
);

fn batch_size_like(input: Draw, shape: Vec<i32>, dtype: DType) -> FillConstantBatchSizeLike<Draw> {
    FillConstantBatchSizeLike {
        input,
        out: out(),
        shape,
        input_dim_idx: 0,
        output_dim_idx: 0,
        dtype,
        value: 2.5,
        str_value: String::new(),
    }
}

/// A tensor given element by element, in the list of its dtype.
#[register_op(grad = NoGrad, infallible, primitive)]
pub struct AssignValue<V = Var> {
    /// Shape and dtype of the attributes.
    #[output]
    pub out: V,
    /// Dimensions.
    #[attr]
    pub shape: Vec<i32>,
    /// Element type: bool, int32, int64, or a floating point type.
    #[attr]
    pub dtype: DType,
    /// Elements of a bool tensor: 0 is false.
    #[attr(default = [])]
    pub bool_values: Vec<i32>,
    /// Elements of a float32, float16 or bfloat16 tensor.
    #[attr(default = [])]
    pub fp32_values: Vec<f32>,
    /// Elements of an int32 tensor.
    #[attr(default = [])]
    pub int32_values: Vec<i32>,
    /// Elements of an int64 tensor.
    #[attr(default = [])]
    pub int64_values: Vec<i64>,
    /// Elements of a float64 tensor.
    #[attr(default = [])]
    pub fp64_values: Vec<f64>,
}
impl<V> AssignValue<V> {
    /// Name and length of the list of the dtype.
    fn list(&self) -> Option<(&'static str, usize)> {
        match self.dtype {
            DType::Bool => Some(("bool_values", self.bool_values.len())),
            DType::F16 | DType::BF16 | DType::F32 => Some(("fp32_values", self.fp32_values.len())),
            DType::I32 => Some(("int32_values", self.int32_values.len())),
            DType::I64 => Some(("int64_values", self.int64_values.len())),
            DType::F64 => Some(("fp64_values", self.fp64_values.len())),
            DType::U8 => None,
        }
    }
}
impl Infer for AssignValue<Meta> {
    fn infer(&mut self) -> Result<()> {
        let shape: Vec<i64> = self.shape.iter().map(|n| i64::from(*n)).collect();
        let refuse = || Error::attr("dtype", format!("there is no list of {} elements", self.dtype));
        let (list, count) = self.list().ok_or_else(refuse)?;
        self.out.set(self.dtype, shape_of_attr(&shape)?);
        if self.out.dims.numel() != count {
            let text = format!("as many elements as in {shape:?} are needed, not {count}");
            return Err(Error::attr(list, text));
        }
        Ok(())
    }
}
impl Kernel for AssignValue<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        match self.dtype {
            DType::F16 | DType::BF16 | DType::F32 => {
                self.out.slice_mut::<f32>()?.copy_from_slice(&self.fp32_values);
            }
            DType::F64 => self.out.slice_mut::<f64>()?.copy_from_slice(&self.fp64_values),
            DType::I32 => self.out.slice_mut::<i32>()?.copy_from_slice(&self.int32_values),
            DType::I64 => self.out.slice_mut::<i64>()?.copy_from_slice(&self.int64_values),
            _ => {
                let out = self.out.slice_mut::<autobwd::tensor::Bool>()?.iter_mut();
                out.zip(&self.bool_values).for_each(|(out, x)| *out = (*x != 0).into());
            }
        }
        Ok(())
    }
}
/// Numbers of the dtype of `x`.
#[track_caller]
pub(crate) fn constants(x: &Expr, numbers: &[f64]) -> Expr {
    let (mut fp32_values, mut fp64_values) = (vec![], vec![]);
    match x.dtype() {
        DType::F64 => fp64_values.extend(numbers),
        _ => fp32_values.extend(numbers.iter().map(|number| *number as f32)),
    }
    let op = AssignValue {
        out: New,
        shape: vec![numbers.len() as i32],
        dtype: x.dtype(),
        bool_values: vec![],
        fp32_values,
        int32_values: vec![],
        int64_values: vec![],
        fp64_values,
    };
    x.builder().emit(op).out
}

autobwd::samples!(
    AssignValue,
    [
        AssignValue { fp32_values: vec![1.0, -2.5, 3.0, 4.0], ..assign_value(vec![2, 2], DType::F32) },
        AssignValue { fp64_values: vec![0.1], ..assign_value(vec![], DType::F64) },
        AssignValue { int32_values: vec![-1, 2], ..assign_value(vec![2], DType::I32) },
        AssignValue { int64_values: vec![i64::MIN, 2, 3], ..assign_value(vec![3, 1], DType::I64) },
        AssignValue { bool_values: vec![1, 0], ..assign_value(vec![2], DType::Bool) },
        assign_value(vec![0, 3], DType::F32),
        AssignValue { int32_values: vec![1, 2], ..assign_value(vec![3], DType::I32) }
            .fails("attribute `int32_values`: as many elements as in [3] are needed, not 2"),
        assign_value(vec![-1], DType::I32).fails("attribute `shape`: -1 is not a dimension"),
        assign_value(vec![1], DType::U8).fails("attribute `dtype`: there is no list of uint8 elements"),
    ]
);

fn assign_value(shape: Vec<i32>, dtype: DType) -> AssignValue<Draw> {
    AssignValue {
        out: out(),
        shape,
        dtype,
        bool_values: vec![],
        fp32_values: vec![],
        int32_values: vec![],
        int64_values: vec![],
        fp64_values: vec![],
    }
}

/// A matrix with ones on its diagonal: `out[i, i] = 1`, 0 elsewhere.
#[register_op(grad = NoGrad, infallible, any_dtype)]
pub struct Eye<V = Var> {
    /// `[num_rows, num_columns]`, of the dtype of the attribute.
    #[output]
    pub out: V,
    /// Number of rows.
    #[attr(min = 0)]
    pub num_rows: i64,
    /// Number of columns; −1 means that of rows.
    #[attr(default = -1, min = -1)]
    pub num_columns: i64,
    /// Element type.
    #[attr(default = DType::F32)]
    pub dtype: DType,
}
impl Infer for Eye<Meta> {
    fn infer(&mut self) -> Result<()> {
        let columns = if self.num_columns < 0 { self.num_rows } else { self.num_columns };
        let dims = [self.num_rows, columns].map(|n| Dim::from(n as usize));
        self.out.set(self.dtype, dims.into_iter().collect::<Dims>());
        Ok(())
    }
}
impl Kernel for Eye<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        self.out.bytes_mut()?.fill(0);
        let columns = self.out.dims()[1];
        with_dtype!(self.dtype, T => {
            let rows = self.out.slice_mut::<T>()?.chunks_exact_mut(columns.max(1));
            for (i, row) in rows.enumerate().take(columns) {
                row[i] = T::narrow(AnyNumber::Int(1));
            }
        });
        Ok(())
    }
}
impl Composition for Eye<Expr> {
    fn compose(&mut self) {
        let columns = if self.num_columns < 0 { self.num_rows } else { self.num_columns };
        let [row, column] = [self.num_rows, columns].map(|n| positions(self.out.builder(), &n.into()));
        self.out = row.unsqueeze(&[1]).equal(&column).cast(self.dtype);
    }
}
autobwd::samples!(
    Eye,
    [
        Eye { out: out(), num_rows: 2, num_columns: 3, dtype: DType::F32 },
        Eye { out: out(), num_rows: 4, num_columns: 3, dtype: DType::I64 },
        Eye { out: out(), num_rows: 2, num_columns: -1, dtype: DType::F64 },
        Eye { out: out(), num_rows: 3, num_columns: 3, dtype: DType::Bool },
        Eye { out: out(), num_rows: 2, num_columns: 0, dtype: DType::F32 },
        Eye { out: out(), num_rows: i64::MAX, num_columns: -1, dtype: DType::F32 }
            .fails("is unknown or too large"),
    ]
);
