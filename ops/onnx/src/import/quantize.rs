//! Quantised numbers: integers with a scale and a zero point.

use std::rc::Rc;

use autobwd::{DType, Dims, Expr, New, Result, Tensor, emit, tensor::Element};
use autobwd_ops::{
    Math,
    matmul::{QuantizedKind, QuantizedMatmul},
};

use super::{
    arith::reshape,
    elementwise::round_to_even,
    node::{NodeContext, NodeOutput, Outputs, one, refuse},
    rules::{All, Native, NodeRules},
    value::ValueContent,
};
use crate::{elements::ElementType, proto::tensor_proto::DataType};

pub(super) const RULES: NodeRules = &[
    ("QuantizeLinear", All, quantize),
    ("DequantizeLinear", All, dequantize),
    ("DynamicQuantizeLinear", Native, dynamic_quantize),
    ("MatMulInteger", All, matmul_integer),
    ("QLinearMatMul", All, quantised_matmul),
    ("com.microsoft:MatMulNBits", Native, matmul_n_bits),
];

/// The smallest and the largest number of an integer type.
fn range(element: ElementType) -> Result<(f64, f64)> {
    Ok(match element.data_type() {
        DataType::Uint8 => (0.0, 255.0),
        DataType::Int8 => (-128.0, 127.0),
        DataType::Uint16 => (0.0, 65535.0),
        DataType::Int16 => (-32768.0, 32767.0),
        _ => return Err(refuse(format!("dtype {} is not supported as a quantised one", element.name()))),
    })
}

/// A scale or a zero point in a shape that broadcasts against `x`: one for each place along the axis, or each block.
fn spread(n: &NodeContext<'_, '_>, of: &Expr, x: &Dims, axis: usize, block: i64) -> Result<Expr> {
    let dims = of.dims();
    match dims.len() {
        0 => Ok(of.clone()),
        _ if dims.numel().get() == Some(1) => Ok(reshape(of, &[])),
        1 if block == 0 => {
            let shape: Vec<i64> = (0..x.len()).map(|i| if i == axis { -1 } else { 1 }).collect();
            Ok(reshape(of, &shape))
        }
        rank if rank == x.len() && block > 0 => {
            let own = x[axis].get().ok_or_else(|| refuse("blocks need known dimensions"))? as i64;
            let blocks = dims[axis].get().ok_or_else(|| refuse("blocks need known dimensions"))? as i64;
            if blocks < 1 || own.div_euclid(block) > blocks {
                return Err(refuse(format!(
                    "attribute `block_size` = {block} of operator `{}` is not supported",
                    n.op()
                )));
            }
            let places: Vec<i64> = (0..own).map(|i| (i / block).min(blocks - 1)).collect();
            Ok(of.index_select(&n.ints_expr(&places)?, axis as i32))
        }
        _ => Err(refuse(format!("operator `{}`: a scale of shape {dims} is not supported", n.op()))),
    }
}

fn axis_of(n: &NodeContext<'_, '_>) -> Result<usize> {
    let axis = n.int_or("axis", 1)?;
    Ok(n.axis(0, axis).unwrap_or(0))
}

fn require_float(n: &NodeContext<'_, '_>, i: usize) -> Result<()> {
    let element = n.element(i)?;
    match element.is_half() {
        true => Err(refuse(format!("dtype {} is not supported by operator `{}`", element.name(), n.op()))),
        false => Ok(()),
    }
}

fn quantize(n: &mut NodeContext<'_, '_>) -> Outputs {
    n.ignore(&["saturate", "precision"]);
    require_float(n, 0)?;
    require_float(n, 1)?;
    let element = match n.value(2) {
        Some(zero) => zero.element,
        None => {
            let code = n.int_or("output_dtype", 0)?;
            match i32::try_from(code).ok().and_then(ElementType::from_code) {
                Some(element) => element,
                None => ElementType::U8,
            }
        }
    };
    n.ignore(&["output_dtype"]);
    n.set_type(0, element);
    let (axis, block) = (axis_of(n)?, n.int_or("block_size", 0)?);
    let (x, scale, zero) = (n.input(0)?, n.input(1)?, n.optional(2)?);
    let x = if x.dtype().is_float() { x } else { x.cast(scale.dtype()) };
    let scale = spread(n, &scale, &x.dims(), axis, block)?;
    let zero = zero.map(|zero| spread(n, &zero.cast(x.dtype()), &x.dims(), axis, block)).transpose()?;
    one(quantised(&x, &scale, zero.as_ref(), element, n.dtype(element)?)?)
}

/// `clamp(round(x / scale) + zero)`.
fn quantised(
    x: &Expr,
    scale: &Expr,
    zero: Option<&Expr>,
    element: ElementType,
    dtype: DType,
) -> Result<Expr> {
    let (min, max) = range(element)?;
    let rounded = round_to_even(&(x / scale));
    let moved = zero.map_or(rounded.clone(), |zero| &rounded + zero);
    Ok(moved.clip(min, max).cast(dtype))
}

fn dequantize(n: &mut NodeContext<'_, '_>) -> Outputs {
    n.ignore(&["output_dtype"]);
    require_float(n, 1)?;
    let element = n.element(1)?;
    n.set_type(0, element);
    let (axis, block) = (axis_of(n)?, n.int_or("block_size", 0)?);
    let (x, scale, zero) = (n.input(0)?, n.input(1)?, n.optional(2)?);
    let (dims, dtype) = (x.dims(), scale.dtype());
    let mut x = x.cast(dtype);
    if let Some(zero) = zero {
        x = &x - &spread(n, &zero.cast(dtype), &dims, axis, block)?;
    }
    one(&x * &spread(n, &scale, &dims, axis, block)?)
}

fn dynamic_quantize(n: &mut NodeContext<'_, '_>) -> Outputs {
    n.set_type(0, ElementType::U8);
    n.set_type(2, ElementType::U8);
    let x = n.input(0)?;
    let zero = super::arith::scalar_like(&x, 0.0);
    let (min, max) = (x.min_over(&[]).minimum(&zero), x.max_over(&[]).maximum(&zero));
    let scale = (&max - &min) * (1.0 / 255.0);
    let point = round_to_even(&(&min * -1.0 / &scale)).clip(0.0, 255.0);
    let y = quantised(&x, &scale, Some(&point), ElementType::U8, DType::U8)?;
    Ok(vec![NodeOutput::Expr(y), NodeOutput::Expr(scale), NodeOutput::Expr(point.cast(DType::U8))])
}

/// An operand without its zero point, exact in float64.
fn centred(n: &mut NodeContext<'_, '_>, i: usize, zero: usize, columns: bool) -> Result<Expr> {
    let x = n.input(i)?.cast(DType::F64);
    let Some(zero) = n.optional(zero)? else { return Ok(x) };
    let zero = zero.cast(DType::F64);
    let rank = x.dims().len();
    Ok(match zero.dims().len() {
        1 if zero.dims().numel().get() == Some(1) => &x - &reshape(&zero, &[]),
        1 if !columns && rank > 1 => &x - &zero.unsqueeze(&[1]),
        _ => &x - &zero,
    })
}

fn matmul_integer(n: &mut NodeContext<'_, '_>) -> Outputs {
    n.set_type(0, ElementType::of(DType::I32));
    let (a, b) = (centred(n, 0, 2, false)?, centred(n, 1, 3, true)?);
    one(a.matmul(&b).cast(DType::I32))
}

fn quantised_matmul(n: &mut NodeContext<'_, '_>) -> Outputs {
    for i in [1, 4, 6] {
        require_float(n, i)?;
    }
    let element = n.element(7)?;
    n.set_type(0, element);
    let (a, b) = (centred(n, 0, 2, false)?, centred(n, 3, 5, true)?);
    let scale = |n: &mut NodeContext<'_, '_>, i: usize| -> Result<Expr> {
        let scale = n.input(i)?.cast(DType::F64);
        match scale.dims().numel().get() {
            Some(1) => Ok(reshape(&scale, &[])),
            _ => Err(refuse("operator `QLinearMatMul` with several scales is not supported")),
        }
    };
    let factor = &(&scale(n, 1)? * &scale(n, 4)?) / &scale(n, 6)?;
    let zero = reshape(&n.input(7)?.cast(DType::F64), &[]);
    let one_scale = super::arith::scalar_like(&factor, 1.0);
    one(quantised(&(&a.matmul(&b) * &factor), &one_scale, Some(&zero), element, n.dtype(element)?)?)
}

/// A product with quantised weights, each of whose columns is contiguous in the file.
fn matmul_n_bits(n: &mut NodeContext<'_, '_>) -> Outputs {
    n.ignore(&["accuracy_level", "weight_prepacked"]);
    let size = |n: &NodeContext<'_, '_>, name: &str| {
        let size = n.int(name)?.and_then(|size| usize::try_from(size).ok()).filter(|size| *size > 0);
        size.ok_or_else(|| refuse(format!("operator `MatMulNBits` needs a positive attribute `{name}`")))
    };
    let (rows, columns, group) = (size(n, "K")?, size(n, "N")?, size(n, "block_size")?);
    let (kind, per_cell) = match n.int_or("bits", 4)? {
        4 => (QuantizedKind::Int4, 8),
        8 => (QuantizedKind::Int8, 4),
        bits => {
            return Err(refuse(format!(
                "attribute `bits` = {bits} of operator `MatMulNBits` is not supported"
            )));
        }
    };
    if !rows.is_multiple_of(per_cell) || !group.is_multiple_of(per_cell) {
        let text =
            format!("attributes `K` = {rows} and `block_size` = {group}: multiples of {per_cell} are needed");
        return Err(refuse(format!("operator `MatMulNBits`: {text}")));
    }
    if n.has(4) {
        return Err(refuse("input `g_idx` of operator `MatMulNBits` is not supported"));
    }
    let blocks = rows.div_ceil(group);
    // A byte of two codes has those of an even row in the low half, as cells have.
    let (codes, scales) = (weights(n, 1)?, weights(n, 2)?);
    let cells = by_rows(codes.slice::<u8>()?, columns, rows / per_cell, 4)?;
    let scales: Vec<f32> = scales.to_f64s().into_iter().map(|scale| scale as f32).collect();
    let scales = by_rows(&scales, columns, blocks, 1)?;
    let zero_points = match n.has(3) {
        false => None,
        true => {
            let packed = weights(n, 3)?;
            let packed = packed.slice::<u8>()?;
            let unpacked: Vec<u8> = match kind {
                QuantizedKind::Int8 => packed.to_vec(),
                _ => packed.iter().flat_map(|byte| [byte & 15, byte >> 4]).collect(),
            };
            Some(by_rows(&unpacked, columns, blocks, 1)?)
        }
    };
    let codes = n.moved_weight(1, Tensor::from_vec([rows / per_cell, columns, 4], cells)?)?;
    let scale = n.moved_weight(2, Tensor::from_vec([blocks, columns], scales)?)?;
    let zero_points = zero_points.map(|zeros| Tensor::from_vec([blocks, columns], zeros)).transpose()?;
    let zero_point = zero_points.map(|zeros| n.moved_weight(3, zeros)).transpose()?;
    let (x, bias) = (n.input(0)?, n.optional(5)?);
    let product = emit(QuantizedMatmul {
        x: (&x).into(),
        codes: (&codes).into(),
        scale: (&scale).into(),
        zero_point: zero_point.as_ref().map(Into::into),
        out: New,
        kind,
        group_size: i32::try_from(group).map_err(|_| refuse("a block of more than 2³¹ rows"))?,
        trans_y: false,
    });
    one(bias.map_or(product.out.clone(), |bias| &product.out + &bias))
}

/// The elements of an initializer.
fn weights(n: &NodeContext<'_, '_>, i: usize) -> Result<Rc<Tensor>> {
    match &n.required(i)?.content {
        ValueContent::Known(known) => Ok(known.tensor.clone()),
        ValueContent::Computed(_) => {
            Err(refuse(format!("operator `{}`: weights that a node computes are not supported", n.op())))
        }
    }
}

/// `[columns, rows, size]` as `[rows, columns, size]`; lines of a column may be longer.
fn by_rows<T: Element>(of_columns: &[T], columns: usize, rows: usize, size: usize) -> Result<Vec<T>> {
    let line = of_columns.len() / columns;
    if !of_columns.len().is_multiple_of(columns) || line < rows * size {
        let (found, needed) = (of_columns.len(), columns * rows * size);
        return Err(refuse(format!(
            "operator `MatMulNBits`: {found} elements of weights, {needed} are needed"
        )));
    }
    let mut moved = Vec::with_capacity(rows * columns * size);
    for row in 0..rows {
        for column in of_columns.chunks_exact(line) {
            moved.extend_from_slice(&column[row * size..][..size]);
        }
    }
    Ok(moved)
}
