//! Quantised numbers: integers with a scale and a zero point.

use autobwd::{DType, Dims, Expr, New, Result, emit};
use autobwd_ops::{
    Math,
    matmul::{QuantizedKind, QuantizedMatmul},
    stack,
};

use super::{
    arith::reshape,
    elementwise::round_to_even,
    node::{NodeContext, NodeOutput, Outputs, one, refuse},
    rules::{All, Native, NodeRules},
    value::ValueContent,
};
use crate::elements::ElementType;

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
    let bits = if element == ElementType::U8 { Some((8, false)) } else { element.narrow_integer() };
    let Some((bits, signed)) = bits.filter(|(bits, _)| *bits <= 16) else {
        return Err(refuse(format!("dtype {} is not supported as a quantised one", element.name())));
    };
    let count = f64::from(1 << bits);
    Ok(if signed { (-count / 2.0, count / 2.0 - 1.0) } else { (0.0, count - 1.0) })
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
pub(super) fn centred(n: &mut NodeContext<'_, '_>, i: usize, zero: usize, columns: bool) -> Result<Expr> {
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

/// A scale, exact in float64, also from 16 bits.
pub(super) fn only_scale(n: &mut NodeContext<'_, '_>, i: usize) -> Result<Expr> {
    let scale = n.input(i)?.cast(DType::F64);
    match scale.dims().numel().get() {
        Some(1) => Ok(reshape(&scale, &[])),
        _ => Err(refuse(format!("operator `{}` with several scales is not supported", n.op()))),
    }
}

/// `clamp(round(x) + zero)`, where the zero point is input `i`.
pub(super) fn requantised(n: &mut NodeContext<'_, '_>, x: &Expr, i: usize, element: ElementType) -> Outputs {
    let zero = reshape(&n.input(i)?.cast(DType::F64), &[]);
    let scale = super::arith::scalar_like(x, 1.0);
    one(quantised(x, &scale, Some(&zero), element, n.dtype(element)?)?)
}

fn quantised_matmul(n: &mut NodeContext<'_, '_>) -> Outputs {
    let element = n.element(7)?;
    n.set_type(0, element);
    let (a, b) = (centred(n, 0, 2, false)?, centred(n, 3, 5, true)?);
    let factor = &(&only_scale(n, 1)? * &only_scale(n, 4)?) / &only_scale(n, 6)?;
    requantised(n, &(&a.matmul(&b) * &factor), 7, element)
}

/// A product with quantised weights, each of whose columns is contiguous in the file.
fn matmul_n_bits(n: &mut NodeContext<'_, '_>) -> Outputs {
    n.ignore(&["accuracy_level", "weight_prepacked"]);
    let size = |n: &NodeContext<'_, '_>, name: &str| {
        let size = n.int(name)?.and_then(|size| i32::try_from(size).ok()).filter(|size| *size > 0);
        size.ok_or_else(|| refuse(format!("operator `MatMulNBits` needs a positive attribute `{name}`")))
    };
    let (rows, columns, group_size) = (size(n, "K")?, size(n, "N")?, size(n, "block_size")?);
    let (kind, per_cell) = match n.int_or("bits", 4)? {
        4 => (QuantizedKind::Int4, 8),
        8 => (QuantizedKind::Int8, 4),
        bits => {
            let text = format!("attribute `bits` = {bits} of operator `MatMulNBits` is not supported");
            return Err(refuse(text));
        }
    };
    if rows % per_cell != 0 || group_size % per_cell != 0 {
        let text = format!(
            "operator `MatMulNBits` with `K` = {rows} and `block_size` = {group_size} is not supported: multiples of \
             {per_cell} are needed"
        );
        return Err(refuse(text));
    }
    if n.has(4) {
        return Err(refuse("operator `MatMulNBits` with groups of any rows (input 4) is not supported"));
    }
    let blocks = (rows - 1) / group_size + 1;
    // Columns are contiguous in the file. A byte of two codes has an even row in its low half, as cells have.
    let codes = arranged(n, 1, |codes| {
        codes.reshape(&[columns, -1, 4]).slice(1, 0, rows / per_cell).transpose(&[1, 0, 2])
    })?;
    let of_blocks = |x: &Expr| x.reshape(&[columns, -1]).slice(1, 0, blocks).transpose(&[1, 0]);
    let scale = arranged(n, 2, of_blocks)?;
    let zero_point = match n.value(3).map(|value| value.element != ElementType::U8) {
        None => None,
        Some(true) => return Err(refuse("zero points of operator `MatMulNBits` must be uint8")),
        Some(false) if kind == QuantizedKind::Int8 => Some(arranged(n, 3, of_blocks)?),
        Some(false) => Some(arranged(n, 3, |pairs| {
            let pairs = pairs.reshape(&[columns, -1]).cast(DType::F32);
            let high = (&pairs * (1.0 / 16.0)).floor();
            of_blocks(&stack(&[&(&pairs - &high * 16.0), &high], 2)).cast(DType::U8)
        })?),
    };
    let (x, bias) = (n.input(0)?, n.optional(5)?);
    let (codes, scale, zero_point) =
        ((&codes).into(), (&scale).into(), zero_point.as_ref().map(|zero_point| zero_point.into()));
    let x = (&x).into();
    let product =
        emit(QuantizedMatmul { x, codes, scale, zero_point, out: New, kind, group_size, trans_y: false }).out;
    one(match bias {
        Some(bias) => &product + &bias,
        None => product,
    })
}

/// An input in another order: a constant if it is one.
fn arranged(n: &mut NodeContext<'_, '_>, i: usize, arrange: impl Fn(&Expr) -> Expr) -> Result<Expr> {
    let known = match &n.required(i)?.content {
        ValueContent::Known(known) => known.tensor.clone(),
        _ => return Ok(arrange(&n.input(i)?)),
    };
    let arranged = arrange(&autobwd::eager().constant((*known).clone())).tensor()?;
    n.moved_weight(i, arranged)
}
