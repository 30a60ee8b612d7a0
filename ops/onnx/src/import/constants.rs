//! Constants, and shapes of tensors as values.

use autobwd::{DType, New, Tensor, emit, tensor::Dim};
use autobwd_ops::{
    Math,
    fill::{Eye, FillConstant},
    filled, positions,
    ranges::Range,
};

use super::{
    node::{NodeContext, NodeOutput, Outputs, one, refuse},
    rules::{All, Native, NodeRules},
    sizes,
    slice::slice_axis,
};
use crate::elements::ElementType;

pub(super) const RULES: NodeRules = &[
    ("Constant", All, constant),
    ("ConstantOfShape", All, constant_of_shape),
    ("Shape", All, sizes::shape),
    ("Size", All, sizes::size),
    ("Range", Native, range),
    ("EyeLike", All, eye_like),
];

fn constant(n: &mut NodeContext<'_, '_>) -> Outputs {
    let tensor = if let Some(read) = n.tensor("value")? {
        n.set_type(0, read.element);
        read.tensor
    } else if let Some(x) = n.float("value_float")? {
        Tensor::scalar(x)?
    } else if let Some(x) = n.int("value_int")? {
        Tensor::scalar(x)?
    } else if let Some(list) = n.floats("value_floats")? {
        Tensor::from_vec([list.len()], list)?
    } else if let Some(list) = n.ints("value_ints")? {
        Tensor::from_vec([list.len()], list)?
    } else {
        return Err(refuse("constants of other types than tensor and number are not supported"));
    };
    Ok(vec![NodeOutput::Known(n.in_precision(tensor)?)])
}

fn constant_of_shape(n: &mut NodeContext<'_, '_>) -> Outputs {
    let value = n.tensor("value")?;
    let (element, dtype, number) = match &value {
        Some(read) => {
            let elements = read.tensor.to_f64s();
            let first = elements.first().ok_or_else(|| refuse("attribute `value` has no element"))?;
            (read.element, read.tensor.dtype(), *first)
        }
        None => (ElementType::F32, n.dtype(ElementType::F32)?, 0.0),
    };
    n.set_type(0, element);
    let text = super::arith::number_text(number, dtype);
    if let Some(dims) = n.decided_sizes(0)? {
        return one(filled(&n.net(), dtype, &text, &dims));
    }
    let shape = n.input(0)?;
    let op =
        FillConstant { shape_tensor: Some((&shape).into()), dtype, str_value: text, ..FillConstant::of(New) };
    one(n.net().emit(op).out)
}

fn range(n: &mut NodeContext<'_, '_>) -> Outputs {
    let computed =
        (0..3).any(|i| n.value(i).is_some_and(|value| value.sources.is_empty() && value.tensor().is_none()));
    let bound = |n: &NodeContext<'_, '_>, i: usize| if computed { Ok(None) } else { n.constant_floats(i) };
    if let (Some(start), Some(end), Some(step)) = (bound(n, 0)?, bound(n, 1)?, bound(n, 2)?)
        && let ([start], [end], [step]) = (&start[..], &end[..], &step[..])
    {
        let count = ((end - start) / step).ceil().max(0.0);
        if count.is_nan() || count > f64::from(1 << 20) {
            return Err(refuse(format!(
                "operator `Range` from {start} to {end} in steps of {step} is not supported"
            )));
        }
        let numbers = (0..count as u32).map(|i| start + f64::from(i) * step);
        let dims = [count as usize];
        return Ok(vec![NodeOutput::Known(match n.constant(0)?.map(|x| x.dtype()) {
            Some(DType::I64) => Tensor::from_vec(dims, numbers.map(|x| x as i64).collect())?,
            Some(DType::I32) => Tensor::from_vec(dims, numbers.map(|x| x as i32).collect())?,
            Some(DType::F64) => Tensor::from_vec(dims, numbers.collect())?,
            dtype => {
                let numbers = Tensor::from_vec(dims, numbers.map(|x| x as f32).collect())?;
                let rounded = match dtype {
                    Some(dtype @ (DType::F16 | DType::BF16)) => numbers.converted_to(dtype)?,
                    _ => Some(numbers),
                };
                rounded
                    .ok_or_else(|| refuse(format!("operator `Range` to {end} is not supported in 16 bits")))?
            }
        })]);
    }
    let size = |i: usize| n.own_sizes(i).and_then(|sizes| Some(sizes.elements.first()?.size()));
    let count = match (size(0), size(1), size(2)) {
        (Some(start), Some(end), Some(step)) if step == 1 => end - start,
        _ => Dim::UNKNOWN,
    };
    let (start, end, step) = (n.input(0)?, n.input(1)?, n.input(2)?);
    let range =
        emit(Range { start: (&start).into(), end: (&end).into(), step: (&step).into(), out: New }).out;
    n.net().refine(&range, &[count]);
    one(range)
}

fn eye_like(n: &mut NodeContext<'_, '_>) -> Outputs {
    let diagonal = n.int_or("k", 0)?;
    let element = match n.int("dtype")? {
        Some(code) => i32::try_from(code).ok().and_then(ElementType::from_code),
        None => Some(n.element(0)?),
    };
    let element =
        element.ok_or_else(|| refuse("attribute `dtype` of operator `EyeLike` is missing or invalid"))?;
    n.set_type(0, element);
    let dtype = n.dtype(element)?;
    if n.rank(0)? != 2 {
        return Err(refuse("operator `EyeLike` needs a matrix"));
    }
    if diagonal.unsigned_abs() > 1 << 20 {
        return Err(refuse(format!("attribute `k` = {diagonal} of operator `EyeLike` is not supported")));
    }
    if n.dims(0)?.iter().any(|dim| dim.get().is_none()) {
        return open_eye(n, diagonal, dtype);
    }
    let dims = n.known_dims(0)?;
    let [rows, columns] = [dims[0] as i64, dims[1] as i64];
    // A larger identity, from which the diagonal is cut.
    let (down, right) = ((-diagonal).max(0), diagonal.max(0));
    let size = (rows + right).max(columns + down);
    let eye = n.net().emit(Eye { out: New, num_rows: size, num_columns: size, dtype: DType::F32 }).out;
    let part = slice_axis(&slice_axis(&eye, 0, right, right + rows), 1, down, down + columns);
    // Row `i` of the part is row `i + k` of the identity, column `j` is column `j - k`.
    one(part.cast(dtype))
}

/// The identity of dimensions that are known when the program is planned.
fn open_eye(n: &mut NodeContext<'_, '_>, diagonal: i64, dtype: DType) -> Outputs {
    let x = n.input(0)?;
    let [rows, columns] = [0, 1].map(|axis| positions(x.builder(), &x.dim(axis)));
    let diagonal = n.ints_expr(&[diagonal])?;
    one((rows + diagonal).unsqueeze(&[1]).equal(&columns.unsqueeze(&[0])).cast(dtype))
}
