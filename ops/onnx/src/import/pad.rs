//! Padding.

use autobwd::{Expr, New, Result, emit};
use autobwd_ops::{DimExpr, Math, shape::Pad};

use super::{
    arith::{dim_of, filled_like, narrow_int, scalar_like},
    node::{NodeContext, Outputs, one, refuse},
    rules::{All, NodeRules},
    slice::slice_axis,
};

pub(super) const RULES: NodeRules = &[("Pad", All, pad), ("CenterCropPad", All, center_crop_pad)];

fn pad(n: &mut NodeContext<'_, '_>) -> Outputs {
    let mode = n.text_or("mode", "constant")?;
    let ints = |ints: Option<Vec<i64>>| ints.map(|ints| ints.into_iter().map(DimExpr::from).collect());
    let (lengths, value): (Option<Vec<DimExpr>>, f64) = match n.version() {
        ..2 => (ints(n.ints("paddings")?), n.float_or("value", 0.0)?.into()),
        2..11 => (ints(n.ints("pads")?), n.float_or("value", 0.0)?.into()),
        _ => (n.sizes(1)?, n.constant_floats(2)?.and_then(|x| x.first().copied()).unwrap_or(0.0)),
    };
    let lengths = lengths.ok_or_else(|| refuse("operator `Pad` needs a known number of lengths"))?;
    let rank = n.rank(0)?;
    let axes = match n.constant_ints(3)? {
        Some(axes) => axes.iter().map(|axis| n.axis(0, *axis)).collect::<Result<_>>()?,
        None => (0..rank).collect::<Vec<_>>(),
    };
    if lengths.len() != 2 * axes.len() {
        let (needed, given) = (2 * axes.len(), lengths.len());
        return Err(refuse(format!("operator `Pad` needs {needed} lengths, not {given}")));
    }
    let Some(pads) = lengths.iter().map(DimExpr::known).collect::<Option<Vec<i64>>>() else {
        if mode != "constant" {
            return Err(refuse(format!("operator `Pad` by computed lengths does not support mode `{mode}`")));
        }
        return computed_pad(&n.input(0)?, &axes, &lengths, value);
    };
    if let Some(length) = pads.iter().find(|length| !(-1 << 31..1 << 31).contains(*length)) {
        return Err(refuse(format!("operator `Pad`: a length of {length} is not supported")));
    }
    let mut x = n.input(0)?;
    let lengths: Vec<(usize, i64, i64)> =
        axes.iter().enumerate().map(|(i, axis)| (*axis, pads[i], pads[i + axes.len()])).collect();
    if mode == "constant" {
        return one(pad_constant(&x, &lengths, value)?);
    }
    for (axis, before, behind) in
        lengths.into_iter().filter(|(_, before, behind)| (*before, *behind) != (0, 0))
    {
        let dim = dim_of(&x, axis);
        // Slices are faster than indices.
        if dim.is_none_or(|dim| before >= 0 && behind >= 0 && before.max(behind) < dim) {
            x = pad_by_slices(&x, axis, before, behind, mode)?;
            continue;
        }
        let dim =
            dim.filter(|dim| *dim > 0).ok_or_else(|| refuse("operator `Pad` needs known dimensions"))?;
        let count =
            dim.checked_add(before).and_then(|n| n.checked_add(behind)).filter(|n| (0..1 << 24).contains(n));
        let count = count.ok_or_else(|| {
            refuse(format!("operator `Pad`: lengths {before} and {behind} are not supported"))
        })?;
        let source = |at: i64| match mode {
            "edge" => Ok(at.clamp(0, dim - 1)),
            "wrap" => Ok(at.rem_euclid(dim)),
            "reflect" if dim == 1 => Ok(0),
            "reflect" => {
                let at = at.rem_euclid(2 * (dim - 1));
                Ok(at.min(2 * (dim - 1) - at))
            }
            other => Err(refuse(format!("attribute `mode` = `{other}` of operator `Pad` is not supported"))),
        };
        let places = (0..count).map(|i| source(i - before)).collect::<Result<Vec<_>>>()?;
        let places = n.ints_expr(&places)?;
        x = x.index_select(&places, axis as i32);
    }
    one(x)
}

/// Padding with one value by lengths that follow from shapes.
fn computed_pad(x: &Expr, axes: &[usize], lengths: &[DimExpr], value: f64) -> Outputs {
    if f64::from(value as f32) != value && !value.is_nan() {
        return Err(refuse(format!("operator `Pad` by computed lengths with {value} is not supported")));
    }
    let mut paddings = vec![[0.into(), 0.into()]; x.dims().len()];
    for (i, axis) in axes.iter().enumerate() {
        paddings[*axis] = [lengths[i].clone(), lengths[i + axes.len()].clone()];
    }
    one(x.pad_to(&paddings, value as f32))
}

/// Padding of a dimension that is longer than the padding: by the slices at its ends.
fn pad_by_slices(x: &Expr, axis: usize, before: i64, behind: i64, mode: &str) -> Result<Expr> {
    if before < 0 || behind < 0 {
        return Err(refuse("operator `Pad` with negative lengths needs known dimensions"));
    }
    let flip = |x: Expr| x.flip(&[axis as i32]);
    let repeat = |x: Expr, times: i64| -> Result<Expr> {
        let mut repeats = vec![1; x.check()?.dims().len()];
        repeats[axis] = narrow_int(times)?;
        Ok(x.tile(&repeats))
    };
    let end = i64::MAX;
    let part = |length: i64, front: bool| -> Result<Option<Expr>> {
        Ok(match (mode, front) {
            _ if length == 0 => None,
            ("reflect", true) => Some(flip(slice_axis(x, axis, 1, 1 + length))),
            ("reflect", false) => Some(flip(slice_axis(x, axis, -1 - length, -1))),
            ("wrap", true) => Some(slice_axis(x, axis, -length, end)),
            ("wrap", false) => Some(slice_axis(x, axis, 0, length)),
            ("edge", true) => Some(repeat(slice_axis(x, axis, 0, 1), length)?),
            ("edge", false) => Some(repeat(slice_axis(x, axis, -1, end), length)?),
            (other, _) => {
                return Err(refuse(format!(
                    "attribute `mode` = `{other}` of operator `Pad` is not supported"
                )));
            }
        })
    };
    let (front, back) = (part(before, true)?, part(behind, false)?);
    let parts: Vec<&Expr> = front.iter().chain([x]).chain(&back).collect();
    Ok(autobwd_ops::concat(&parts, axis as i32))
}

/// Adds elements of one value, and drops elements where lengths are negative.
pub(super) fn pad_constant(x: &Expr, lengths: &[(usize, i64, i64)], value: f64) -> Result<Expr> {
    let mut x = x.check()?.clone();
    let rank = x.dims().len();
    if let Some((axis, ..)) = lengths.iter().find(|(axis, ..)| *axis >= rank) {
        return Err(refuse(format!("{} has no axis {axis}", x.dims())));
    }
    let mut paddings = vec![0; 2 * rank];
    for (axis, before, behind) in lengths {
        if *before < 0 || *behind < 0 {
            let end = if *behind < 0 { *behind } else { i32::MAX.into() };
            x = slice_axis(&x, *axis, (-before).max(0), end);
        }
        paddings[2 * axis] = narrow_int((*before).max(0))?;
        paddings[2 * axis + 1] = narrow_int((*behind).max(0))?;
    }
    if paddings.iter().all(|length| *length == 0) {
        return Ok(x);
    }
    let exact = f64::from(value as f32) == value || value.is_nan();
    if exact {
        return Ok(emit(Pad { x: (&x).into(), out: New, paddings, pad_value: value as f32 }).out);
    }
    // float64: the padding of a mask decides.
    let zeros = emit(Pad { x: (&x).into(), out: New, paddings: paddings.clone(), pad_value: 0.0 }).out;
    let mask = filled_like(&x, 0.0, x.dtype());
    let mask = emit(Pad { x: (&mask).into(), out: New, paddings, pad_value: 1.0 }).out;
    Ok(zeros + &mask * &scalar_like(&mask, value))
}

/// Crops or pads dimensions around their centre.
fn center_crop_pad(n: &mut NodeContext<'_, '_>) -> Outputs {
    let sizes = n.constant_ints(1)?.ok_or_else(|| refuse("operator `CenterCropPad` lacks its shape"))?;
    let dims = n.known_dims(0)?;
    let axes = match n.ints("axes")? {
        Some(axes) => axes.iter().map(|axis| n.axis(0, *axis)).collect::<Result<_>>()?,
        None => (0..dims.len()).collect::<Vec<_>>(),
    };
    if axes.len() != sizes.len() {
        return Err(refuse("operator `CenterCropPad` needs a size for each axis"));
    }
    if let Some(size) = sizes.iter().find(|size| !(0..1 << 31).contains(*size)) {
        return Err(refuse(format!("operator `CenterCropPad`: a size of {size} is not supported")));
    }
    let lengths = axes.iter().zip(&sizes).map(|(axis, size)| {
        let added = size - dims[*axis] as i64;
        let before = if added < 0 { -(-added / 2) } else { added / 2 };
        (*axis, before, added - before)
    });
    let x = n.input(0)?;
    one(pad_constant(&x, &lengths.collect::<Vec<_>>(), 0.0)?)
}
