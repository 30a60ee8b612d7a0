//! Parts of tensors: slices, with steps and between computed bounds, and splits.

use autobwd::{Expr, New, Result, emit};
use autobwd_ops::{
    DimExpr, Math, concat,
    shape::{Split, StridedSlice},
};

use super::{
    arith::{dim_of, narrow, narrow_int, narrow_sizes},
    node::{NodeContext, Outputs, all, one, refuse},
    rules::{All, NodeRules},
};

pub(super) const RULES: NodeRules = &[("Split", All, split), ("Slice", All, slice)];

fn split(n: &mut NodeContext<'_, '_>) -> Outputs {
    let axis = n.int_or("axis", 0)?;
    let axis = n.axis(0, axis)?;
    let given = match n.version() {
        ..13 => n.ints("split")?,
        _ => n.constant_ints(1)?,
    };
    let count = n.output_count();
    n.ignore(&["num_outputs"]);
    let sizes = match given {
        Some(sizes) => sizes,
        None => {
            let Some(dim) = n.dims(0)?[axis].get() else {
                let x = n.input(0)?;
                let dim = x.dim(axis as i32);
                let part = (&dim + (count as i64 - 1)) / (count as i64);
                let bound = |i: usize| (&part * i as i64).min(dim.clone());
                return all((0..count)
                    .map(|i| x.slice_to(axis as i32, &bound(i), &bound(i + 1)))
                    .collect::<Vec<_>>());
            };
            // The last part may be smaller.
            let part = dim.div_ceil(count.max(1));
            (0..count).map(|i| dim.saturating_sub(i * part).min(part) as i64).collect()
        }
    };
    if sizes.len() != count {
        return Err(refuse(format!("operator `Split` has {count} outputs, but {} sizes", sizes.len())));
    }
    let x = n.input(0)?;
    if let [_] = sizes[..] {
        return one(x);
    }
    if sizes.contains(&0) {
        let mut start = 0_i64;
        let part = |size: &i64| {
            let before = start;
            start = start.saturating_add(*size);
            slice_axis(&x, axis, before, start)
        };
        return all(sizes.iter().map(part).collect::<Vec<_>>());
    }
    let op = Split {
        x: (&x).into(),
        out: sizes.iter().map(|_| New).collect(),
        axis: axis as i32,
        num: 0,
        sections: narrow_sizes(&sizes)?,
        axis_tensor: None,
        sections_tensor_list: vec![],
    };
    all(emit(op).out)
}

/// The slice from `start` to `end`, exclusive.
pub(super) fn slice_axis(x: &Expr, axis: usize, start: i64, end: i64) -> Expr {
    let [start, end] = [start, end].map(|at| at.clamp(i32::MIN.into(), i32::MAX.into()) as i32);
    x.slice(axis as i32, start, end)
}

fn slice(n: &mut NodeContext<'_, '_>) -> Outputs {
    let rank = n.rank(0)?;
    let (starts, ends, axes, steps) = match n.version() {
        ..10 => (n.ints("starts")?, n.ints("ends")?, n.ints("axes")?, None),
        _ if n.is_data(1) || n.is_data(2) => return decided_slice(n),
        _ => match (n.planned_ints(1)?, n.planned_ints(2)?) {
            (Some(starts), Some(ends)) => {
                (Some(starts), Some(ends), n.constant_ints(3)?, n.constant_ints(4)?)
            }
            _ => return computed_slice(n),
        },
    };
    let (Some(starts), Some(ends)) = (starts, ends) else {
        return Err(refuse("operator `Slice` lacks its ends"));
    };
    let axes = axes.unwrap_or_else(|| (0..starts.len() as i64).collect());
    let steps = steps.unwrap_or_else(|| vec![1; starts.len()]);
    if [ends.len(), axes.len(), steps.len()] != [starts.len(); 3] || starts.len() > rank {
        return Err(refuse("operator `Slice` needs starts, ends, axes and steps of one length"));
    }
    let mut x = n.input(0)?;
    for (i, axis) in axes.iter().enumerate() {
        let axis = n.axis(0, *axis)?;
        x = strided(&x, axis, starts[i], ends[i], steps[i])?;
    }
    one(x)
}

/// The elements `start`, `start + step`, … before `end`, as in NumPy.
pub(super) fn strided(x: &Expr, axis: usize, start: i64, end: i64, step: i64) -> Result<Expr> {
    if step == 0 {
        return Err(refuse("operator `Slice`: a step of 0"));
    }
    x.check()?;
    let Some(dim) = dim_of(x, axis) else {
        return open_strided(x, axis, &start.into(), &end.into(), step);
    };
    let from_end = |at: i64| if at < 0 { at.saturating_add(dim) } else { at };
    let (low, high) = if step > 0 { (0, dim) } else { (-1, dim - 1) };
    let (start, end) = (from_end(start).clamp(low, high), from_end(end).clamp(low, high));
    let distance = if step > 0 { end - start } else { start - end };
    let count = if distance <= 0 { 0 } else { (distance - 1) / step.saturating_abs() + 1 };
    if count == 0 {
        return Ok(slice_axis(x, axis, 0, 0));
    }
    let last = start + (count - 1) * step;
    let (first, end) = if step > 0 { (start, last + 1) } else { (last, start + 1) };
    let part = match step.saturating_abs() {
        _ if first == 0 && end == dim && step.saturating_abs() == 1 => x.clone(),
        1 => slice_axis(x, axis, first, end),
        stride => every(x, axis, first, end, narrow_int(stride.min(dim))?),
    };
    Ok(if step > 0 || count == 1 { part } else { part.flip(&[axis as i32]) })
}

fn every(x: &Expr, axis: usize, start: i64, end: i64, stride: i32) -> Expr {
    emit(StridedSlice {
        axes: vec![axis as i32],
        starts: narrow(&[start]),
        ends: narrow(&[end]),
        strides: vec![stride],
        ..StridedSlice::of(x.into(), New)
    })
    .out
}

/// [`strided`] along a dimension, or between bounds, that are known when the program is planned.
fn open_strided(x: &Expr, axis: usize, start: &DimExpr, end: &DimExpr, step: i64) -> Result<Expr> {
    if step == 0 {
        return Err(refuse("operator `Slice`: a step of 0"));
    }
    let every = |part: Expr| match narrow_int(step.saturating_abs().min(i32::MAX.into()))? {
        1 => Ok(part),
        stride => Ok(every(&part, axis, 0, i32::MAX.into(), stride)),
    };
    if step > 0 {
        return every(x.slice_to(axis as i32, start, end));
    }
    let (Some(first), Some(end)) = (start.known(), end.known()) else {
        return Err(refuse("operator `Slice` with negative steps needs known starts and ends"));
    };
    // From the end to the start: both one further, where −1 + 1 is the length.
    let after = |bound: i64| if bound == -1 { x.dim(axis as i32) } else { bound.saturating_add(1).into() };
    let low = if end < i32::MIN.into() { 0.into() } else { after(end) };
    every(x.slice_to(axis as i32, &low, &after(first)).flip(&[axis as i32]))
}

/// A slice between computed bounds.
fn computed_slice(n: &mut NodeContext<'_, '_>) -> Outputs {
    let (Some(starts), Some(ends)) = (n.sizes(1)?, n.sizes(2)?) else {
        return Err(refuse("operator `Slice` needs a known number of starts"));
    };
    let (axes, steps) = axes_and_steps(n, starts.len(), ends.len())?;
    let mut x = n.input(0)?;
    for (i, axis) in axes.into_iter().enumerate() {
        x = open_strided(&x, axis, &starts[i], &ends[i], steps[i])?;
    }
    one(x)
}

/// A slice between bounds that the model computes from its data.
fn decided_slice(n: &mut NodeContext<'_, '_>) -> Outputs {
    let (starts, ends) = (elements(n, 1)?, elements(n, 2)?);
    let (axes, steps) = axes_and_steps(n, starts.len(), ends.len())?;
    if steps.iter().any(|step| *step < 0) {
        // The error says which values to give.
        n.planned_ints(1)?;
        n.planned_ints(2)?;
        return Err(refuse("operator `Slice` with negative steps needs known starts and ends"));
    }
    let mut x = n.input(0)?;
    // Dimensions are not negative: bounds that count from the end are taken from the start.
    let from_start = |(bound, axis): (&DimExpr, &usize)| {
        let dim = x.dim(*axis as i32);
        let is_negative = bound.min(0).max(-1) * -1;
        (bound + is_negative * &dim).max(0).min(dim).number(&n.net())
    };
    let bounds: Vec<Expr> = starts.iter().zip(&axes).chain(ends.iter().zip(&axes)).map(from_start).collect();
    let bounds = DimExpr::decided(&concat(&bounds.iter().collect::<Vec<_>>(), 0));
    let (starts, ends) = bounds.split_at(axes.len());
    for (i, axis) in axes.into_iter().enumerate() {
        x = open_strided(&x, axis, &starts[i], &ends[i], steps[i])?;
    }
    one(x)
}

/// The integers of a vector of known length, as the model computes them.
fn elements(n: &mut NodeContext<'_, '_>, i: usize) -> Result<Vec<DimExpr>> {
    if !n.is_data(i) {
        let sizes = n.sizes(i)?;
        return sizes.ok_or_else(|| refuse("operator `Slice` needs a known number of starts"));
    }
    let x = n.input(i)?;
    let count = x.dims().numel().get().unwrap_or(0) as i32;
    Ok((0..count).map(|at| DimExpr::element(&x, at)).collect())
}

/// The axes and the steps of so many starts and ends.
fn axes_and_steps(n: &NodeContext<'_, '_>, starts: usize, ends: usize) -> Result<(Vec<usize>, Vec<i64>)> {
    let axes = n.constant_ints(3)?.unwrap_or_else(|| (0..starts as i64).collect());
    let steps = n.constant_ints(4)?.unwrap_or_else(|| vec![1; starts]);
    if [ends, axes.len(), steps.len()] != [starts; 3] {
        return Err(refuse("operator `Slice` needs starts, ends, axes and steps of one length"));
    }
    let axes = axes.iter().map(|axis| n.axis(0, *axis)).collect::<Result<_>>()?;
    Ok((axes, steps))
}
