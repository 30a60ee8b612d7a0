//! Constants, bits, remainders and evenly spaced numbers.

use autobwd::{DType, Error, Tensor, op::Rule, tensor::Bool};
use autobwd_ops::{
    bitwise::{BitwiseAnd, BitwiseNot, BitwiseOr, BitwiseXor},
    fill::{AssignValue, FillConstant},
    floor_division::ElementwiseMod,
    ranges::Range,
};

use super::{NodeAttr, Onnx};
use crate::rules;

rules!(AssignValue, BitwiseAnd, BitwiseNot, BitwiseOr, BitwiseXor, ElementwiseMod, FillConstant, Range);

impl Rule<Onnx> for AssignValue<Onnx> {
    fn apply(&mut self) {
        let dims: Vec<usize> = self.shape.iter().map(|dim| usize::try_from(*dim).unwrap_or(0)).collect();
        let tensor = match self.dtype {
            DType::Bool => {
                Tensor::from_vec(dims, self.bool_values.iter().map(|x| Bool::from(*x != 0)).collect())
            }
            DType::F16 | DType::BF16 | DType::F32 => {
                let numbers: Vec<f64> = self.fp32_values.iter().map(|x| f64::from(*x)).collect();
                Tensor::from_f64s(self.dtype, dims, &numbers)
            }
            DType::F64 => Tensor::from_vec(dims, self.fp64_values.clone()),
            DType::I32 => Tensor::from_vec(dims, self.int32_values.clone()),
            DType::I64 => Tensor::from_vec(dims, self.int64_values.clone()),
            DType::U8 => Err(Error::attr("dtype", "there is no list of uint8 elements")),
        };
        match tensor {
            Ok(tensor) => self.out = self.out.tensor(&tensor),
            Err(e) => self.out.fail(e.message()),
        }
    }
}

impl Rule<Onnx> for FillConstant<Onnx> {
    fn apply(&mut self) {
        let shape = match self.out.known_dims() {
            Some(dims) => Some(self.out.ints(&dims)),
            None => Onnx::given(&self.shape_tensor, &self.shape_tensor_list),
        };
        let Some(shape) = shape else {
            self.out.fail("the shape of a constant must be known");
            return;
        };
        let number = match (&self.value_tensor, &*self.str_value) {
            (Some(value), _) => value.clone(),
            (None, "") => self.out.number(f64::from(self.value)),
            (None, text) => match text.parse() {
                Ok(number) => self.out.number(number),
                Err(_) => {
                    self.out.fail(format!("attribute `str_value`: {text} is not a number"));
                    return;
                }
            },
        };
        self.out = number.node("Expand", &[&shape], &[]);
    }
}

macro_rules! bitwise {
    ($($op:ident $bits:literal $bools:literal $($y:ident)?),*) => {$(
        impl Rule<Onnx> for $op<Onnx> {
            fn apply(&mut self) {
                let name = if self.x.dtype() == DType::Bool { $bools } else { $bits };
                self.out = self.x.node(name, &[$(&self.$y)?], &[]);
            }
        }
    )*};
}
bitwise!(
    BitwiseAnd "BitwiseAnd" "And" y, BitwiseNot "BitwiseNot" "Not", BitwiseOr "BitwiseOr" "Or" y,
    BitwiseXor "BitwiseXor" "Xor" y
);

/// Two operands, the one of lower rank from dimension `axis` of the other one on; −1 aligns the last dimensions.
fn aligned(x: &Onnx, y: &Onnx, axis: i32) -> [Onnx; 2] {
    let raised = |low: &Onnx, high: &Onnx| {
        let after = high.rank() as i64 - low.rank() as i64 - i64::from(axis);
        // ONNX aligns the last dimensions.
        match axis >= 0 && after > 0 && low.rank() > 0 {
            true => low.unsqueeze(&(-after..0).collect::<Vec<_>>()),
            false => low.clone(),
        }
    };
    if y.rank() <= x.rank() { [x.clone(), raised(y, x)] } else { [raised(x, y), y.clone()] }
}

/// The remainder of floor division, with the sign of `y`.
fn remainder(x: &Onnx, y: &Onnx) -> Onnx {
    if !x.dtype().is_float() {
        return x.node("Mod", &[y], &[]);
    }
    let zero = x.number(0.0);
    let rest = x.node("Mod", &[y], &[("fmod", NodeAttr::Int(1))]);
    let is_other_sign = zero.greater(&rest).node("Xor", &[&zero.greater(y)], &[]);
    let shifted = is_other_sign.select(&(&rest + y), &rest);
    rest.equal(&zero).select(&rest, &shifted)
}

impl Rule<Onnx> for ElementwiseMod<Onnx> {
    fn apply(&mut self) {
        let [x, y] = aligned(&self.x, &self.y, self.axis);
        self.out = remainder(&x, &y);
    }
}

impl Rule<Onnx> for Range<Onnx> {
    fn apply(&mut self) {
        let dtype = self.out.dtype();
        let [start, end, step] = [&self.start, &self.end, &self.step].map(|x| x.cast(dtype).reshape(&[]));
        self.out = start.node("Range", &[&end, &step], &[]);
    }
}
