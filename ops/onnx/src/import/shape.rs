//! Operators that move elements: reshapes, permutations, slices, concatenations.

use autobwd::{DType, Expr, New, Result, emit, tensor::Dim};
use autobwd_ops::{
    DimExpr, Math, all_sizes,
    fill::FillConstant,
    shape::{Concat, ExpandAsV2, ExpandV2, FlattenContiguousRange, Reshape2, Tile, TrilTriu},
};

use super::{
    arith::{check_table, filled_like, narrow, narrow_sizes, permute, reshape},
    node::{NodeContext, Outputs, one, refuse},
    rules::{All, NodeRules},
    sizes,
};

pub(super) const RULES: NodeRules = &[
    ("Reshape", All, reshape_rule),
    ("Flatten", All, flatten),
    ("Transpose", All, transpose),
    ("Squeeze", All, squeeze),
    ("Unsqueeze", All, unsqueeze),
    ("Concat", All, concat),
    ("Expand", All, expand),
    ("Tile", All, tile),
    ("DepthToSpace", All, depth_to_space),
    ("SpaceToDepth", All, space_to_depth),
    ("Trilu", All, trilu),
    ("ReverseSequence", All, reverse_sequence),
];

fn reshape_rule(n: &mut NodeContext<'_, '_>) -> Outputs {
    let zeros = n.flag("allowzero", false)?;
    let shape = match n.version() {
        ..5 => n.ints("shape")?,
        _ => n.planned_ints(1)?,
    };
    let x = n.input(0)?;
    let Some(mut shape) = shape else { return computed_reshape(n, &x, zeros) };
    let own = x.dims();
    if zeros && shape.contains(&0) {
        // No elements: the dimension −1 cannot follow from their number.
        if shape.contains(&-1) {
            return Err(refuse(
                "operator `Reshape` with `allowzero`: dimensions 0 and -1 exclude each other",
            ));
        }
        let op = FillConstant { shape, dtype: x.dtype(), ..FillConstant::of(New) };
        return one(n.net().emit(op).out);
    }
    for (i, dim) in shape.iter_mut().enumerate().filter(|(_, dim)| **dim == 0) {
        if let Some(known) = own.get(i).and_then(|dim| dim.get()) {
            *dim = known as i64;
        }
    }
    if own.numel().get() == Some(0) {
        return empty(n, &x, &shape);
    }
    narrow_sizes(&shape)?;
    one(reshape(&x, &shape))
}

/// A reshape to sizes that follow from other shapes.
fn computed_reshape(n: &mut NodeContext<'_, '_>, x: &Expr, zeros: bool) -> Outputs {
    let Some(mut sizes) = n.sizes(1)? else {
        let dims = n.input(1)?;
        let op = Reshape2 { shape_input: Some((&dims).into()), ..Reshape2::of(x.into(), New, New, vec![]) };
        return one(emit(op).out);
    };
    if !zeros {
        let copied = |(axis, size): (usize, DimExpr)| match size.known() {
            Some(0) => x.dim(axis as i32),
            _ => size,
        };
        sizes = sizes.into_iter().enumerate().map(copied).collect();
    }
    let inferred = sizes.iter().position(|size| size.known() == Some(-1));
    if let Some((at, size)) = inferred.and_then(|at| Some((at, rest(x, at, &sizes)?))) {
        sizes[at] = size;
    }
    let stays = |(size, dim): (&DimExpr, DimExpr)| size.is_same(&dim);
    if sizes.len() == x.dims().len() && sizes.iter().zip(all_sizes(x)).all(stays) {
        return one(x.clone());
    }
    let out = x.reshape_to(&sizes);
    if let Some(at) = inferred.filter(|_| out.check().is_ok()) {
        let mut dims = vec![Dim::UNKNOWN; sizes.len()];
        dims[at] = inferred_size(x, at, &sizes);
        n.net().refine(&out, &dims);
    }
    one(out)
}

/// The size for −1 at a position, as far as names of dimensions say.
fn inferred_size(x: &Expr, at: usize, sizes: &[DimExpr]) -> Dim {
    let others = sizes.iter().enumerate().filter(|(i, _)| *i != at).map(|(_, size)| size.size());
    x.dims().numel() / others.fold(Dim::from(1), |product, size| product * size)
}

/// The size for −1 at a position, if it is known, or is a dimension of `x` there: dimensions that stay cancel out, even if
/// they are unknown.
fn rest(x: &Expr, at: usize, sizes: &[DimExpr]) -> Option<DimExpr> {
    let inferred = inferred_size(x, at, sizes);
    if x.dims().get(at).is_some_and(|dim| inferred.is_named() && *dim == inferred) {
        return Some(x.dim(at as i32));
    }
    let mut dims = all_sizes(x);
    for size in sizes.iter().filter(|size| size.known().is_none()) {
        dims.remove(dims.iter().position(|dim| dim.is_same(size))?);
    }
    let product =
        |sizes: &[DimExpr]| sizes.iter().try_fold(1_i64, |product, size| product.checked_mul(size.known()?));
    let known: Vec<DimExpr> =
        sizes.iter().filter(|size| size.known().is_some_and(|n| n != -1)).cloned().collect();
    let (all, placed) = (product(&dims)?, product(&known)?);
    all.checked_div(placed).filter(|size| size * placed == all && all > 0).map(DimExpr::from)
}

/// A tensor without elements in another shape.
fn empty(n: &NodeContext<'_, '_>, x: &Expr, shape: &[i64]) -> Outputs {
    let mut shape = shape.to_vec();
    if let Some(at) = shape.iter().position(|dim| *dim == -1) {
        shape[at] = 0;
        if shape.iter().enumerate().any(|(i, dim)| i != at && *dim == 0) {
            return Err(refuse("operator `Reshape`: the dimension -1 does not follow from 0 elements"));
        }
    }
    let op = FillConstant { shape, dtype: x.dtype(), ..FillConstant::of(New) };
    one(n.net().emit(op).out)
}

fn flatten(n: &mut NodeContext<'_, '_>) -> Outputs {
    let x = n.input(0)?;
    let dims = x.dims();
    let axis = n.int_or("axis", 1)?;
    let rank = dims.len() as i64;
    let axis = if axis < 0 { axis + rank } else { axis };
    if !(0..=rank).contains(&axis) {
        return Err(refuse(format!("operator `Flatten`: {dims} has no axis {axis}")));
    }
    let product = |part: &[Dim]| {
        part.iter().try_fold(1_i64, |all, dim| all.checked_mul(i64::try_from(dim.get()?).ok()?))
    };
    let (before, behind): (Option<i64>, Option<i64>) = {
        let (before, behind) = dims.split_at(axis as usize);
        (product(before), product(behind))
    };
    let shape = match (before, behind) {
        (Some(before), Some(behind)) => [before, behind],
        (Some(before), None) => [before, -1],
        (None, Some(behind)) => [-1, behind],
        (None, None) => {
            let merge = |x: &Expr, start_axis: i64, stop_axis: i64| {
                let (start_axis, stop_axis) = (start_axis as i32, stop_axis as i32);
                emit(FlattenContiguousRange { x: x.into(), out: New, x_shape: New, start_axis, stop_axis })
                    .out
            };
            return one(merge(&merge(&x, axis, rank - 1), 0, axis - 1));
        }
    };
    one(reshape(&x, &shape))
}

fn transpose(n: &mut NodeContext<'_, '_>) -> Outputs {
    let rank = n.rank(0)?;
    let axes = match n.ints("perm")? {
        Some(axes) => axes.iter().map(|axis| n.axis(0, *axis)).collect::<Result<Vec<_>>>()?,
        None => (0..rank).rev().collect(),
    };
    let x = n.input(0)?;
    one(permute(&x, &axes))
}

fn squeeze(n: &mut NodeContext<'_, '_>) -> Outputs {
    let axes = match n.version() {
        ..13 => n.ints("axes")?,
        _ => n.constant_ints(1)?,
    };
    let dims = n.dims(0)?;
    let axes = match axes {
        Some(axes) => axes,
        None => {
            let known = n.known_dims(0)?;
            known.iter().enumerate().filter(|(_, dim)| **dim == 1).map(|(i, _)| i as i64).collect()
        }
    };
    let x = n.input(0)?;
    for axis in &axes {
        let axis = n.axis(0, *axis)?;
        if dims[axis].get().is_some_and(|dim| dim != 1) {
            return Err(refuse(format!("operator `Squeeze`: dimension {axis} of {dims} is not 1")));
        }
    }
    one(if axes.is_empty() { x } else { x.squeeze(&narrow(&axes)) })
}

fn unsqueeze(n: &mut NodeContext<'_, '_>) -> Outputs {
    let axes = match n.version() {
        ..13 => n.ints("axes")?,
        _ => n.constant_ints(1)?,
    };
    let axes = axes.ok_or_else(|| refuse("operator `Unsqueeze` lacks its axes"))?;
    let rank = (n.rank(0)? + axes.len()) as i64;
    let mut axes: Vec<i64> = axes.iter().map(|axis| if *axis < 0 { axis + rank } else { *axis }).collect();
    axes.sort_unstable();
    let x = n.input(0)?;
    one(x.unsqueeze(&narrow(&axes)))
}

fn concat(n: &mut NodeContext<'_, '_>) -> Outputs {
    let axis = n.int_or("axis", 1)?;
    let axis = n.axis(0, axis)? as i32;
    let inputs = n.all_inputs()?;
    let x = inputs.iter().map(Into::into).collect();
    one(emit(Concat { x, out: New, axis, axis_tensor: None }).out)
}

fn expand(n: &mut NodeContext<'_, '_>) -> Outputs {
    let x = n.input(0)?;
    if n.is_data(1) {
        let sizes = n.decided_sizes(1)?.unwrap_or_default();
        return one(x.expand_to(&broadcast_sizes(&x, &sizes)?));
    }
    if let Some(shape) = n.planned_ints(1)? {
        let sizes = narrow_sizes(&shape)?;
        if sizes.iter().any(|size| *size < 0) {
            return Err(refuse(format!("operator `Expand`: {shape:?} is not a shape")));
        }
        let dims = x.dims();
        let rank = dims.len().max(sizes.len());
        // Both broadcast, aligned at their ends; an open dimension of `x` has the wanted size, or is 1. −1 keeps one.
        let aligned = |axis: usize, len: usize| (axis + len).checked_sub(rank);
        let size = |axis: usize| {
            let own = aligned(axis, dims.len()).map(|at| dims[at]);
            let wanted = aligned(axis, sizes.len()).map_or(1, |at| sizes[at]);
            match own {
                Some(_) if wanted == 1 => Ok(-1),
                Some(own) if own.get().is_some_and(|own| own != 1 && own != wanted as usize) => {
                    Err(refuse(format!("operator `Expand`: {dims} does not broadcast to {shape:?}")))
                }
                _ => Ok(wanted),
            }
        };
        let shape: Vec<i32> = (0..rank).map(size).collect::<Result<_>>()?;
        if shape.iter().all(|size| *size == -1) {
            return one(x);
        }
        let op =
            ExpandV2 { x: (&x).into(), shape_input: None, expand_shapes_tensor: vec![], out: New, shape };
        return one(emit(op).out);
    }
    if let Some(sizes) = n.sizes(1)? {
        return one(x.expand_to(&broadcast_sizes(&x, &sizes)?));
    }
    let shape = n.input(1)?;
    let op = FillConstant { shape_tensor: Some((&shape).into()), dtype: DType::I32, ..FillConstant::of(New) };
    let zeros = n.net().emit(op).out + filled_like(&x, 0.0, DType::I32);
    one(emit(ExpandAsV2 { x: (&x).into(), y: Some((&zeros).into()), out: New, target_shape: vec![] }).out)
}

/// The dimensions of a tensor that is expanded to sizes: of both, one is 1 or they are equal.
fn broadcast_sizes(x: &Expr, sizes: &[DimExpr]) -> Result<Vec<DimExpr>> {
    let dims = x.dims();
    let rank = dims.len().max(sizes.len());
    let aligned = |axis: usize, len: usize| (axis + len).checked_sub(rank);
    let size = |axis: usize| {
        let own = aligned(axis, dims.len()).map_or(1.into(), |at| x.dim(at as i32));
        let wanted = aligned(axis, sizes.len()).map_or(1.into(), |at| sizes[at].clone());
        Ok(match (own.known(), wanted.known()) {
            (Some(1), _) => wanted,
            (Some(own), Some(wanted)) if wanted != 1 && own != wanted => {
                return Err(refuse(format!(
                    "operator `Expand`: {dims} does not broadcast to {wanted} at axis {axis}"
                )));
            }
            (Some(_), _) | (_, Some(1)) => own,
            (None, Some(_)) => wanted,
            (None, None) if own.is_same(&wanted) => own,
            (None, None) => sizes::broadcast(&own, &wanted),
        })
    };
    (0..rank).map(size).collect()
}

fn tile(n: &mut NodeContext<'_, '_>) -> Outputs {
    let x = n.input(0)?;
    let (repeat_times_input, repeat_times) = match n.planned_ints(1)? {
        Some(times) => (None, narrow_sizes(&times)?),
        None => (Some(n.input(1)?), vec![]),
    };
    if repeat_times_input.is_none() && repeat_times.contains(&0) {
        return Err(refuse("operator `Tile` with 0 repeats is not supported"));
    }
    let repeat_times_input = repeat_times_input.as_ref().map(Into::into);
    one(emit(Tile {
        x: (&x).into(),
        repeat_times_input,
        repeat_times_tensor: vec![],
        out: New,
        repeat_times,
    })
    .out)
}

fn image(n: &mut NodeContext<'_, '_>) -> Result<(Expr, [i64; 4], i64)> {
    let size = n.int_or("blocksize", 0)?;
    let dims = n.known_dims(0)?;
    let [batch, channels, height, width] = dims[..] else {
        return Err(refuse(format!("operator `{}` needs four dimensions", n.op())));
    };
    if !(1..1 << 15).contains(&size) {
        return Err(refuse(format!(
            "attribute `blocksize` = {size} of operator `{}` is not supported",
            n.op()
        )));
    }
    Ok((n.input(0)?, [batch, channels, height, width].map(|dim| dim as i64), size))
}

fn depth_to_space(n: &mut NodeContext<'_, '_>) -> Outputs {
    let (x, [batch, channels, height, width], size) = image(n)?;
    let depth = channels / (size * size);
    let (dims, axes) = match n.text_or("mode", "DCR")? {
        "DCR" => ([batch, size, size, depth, height, width], [0, 3, 4, 1, 5, 2]),
        "CRD" => ([batch, depth, size, size, height, width], [0, 1, 4, 2, 5, 3]),
        other => {
            return Err(refuse(format!(
                "attribute `mode` = `{other}` of operator `DepthToSpace` is not supported"
            )));
        }
    };
    let moved = permute(&reshape(&x, &dims), &axes);
    one(reshape(&moved, &[batch, depth, height * size, width * size]))
}

fn space_to_depth(n: &mut NodeContext<'_, '_>) -> Outputs {
    let (x, [batch, channels, height, width], size) = image(n)?;
    let (rows, columns) = (height / size, width / size);
    let moved = permute(&reshape(&x, &[batch, channels, rows, size, columns, size]), &[0, 3, 5, 1, 2, 4]);
    one(reshape(&moved, &[batch, channels * size * size, rows, columns]))
}

fn trilu(n: &mut NodeContext<'_, '_>) -> Outputs {
    let upper = n.flag("upper", true)?;
    let diagonal = n.constant_ints(1)?.and_then(|k| k.first().copied()).unwrap_or(0);
    let x = n.input(0)?;
    let largest = i64::from(i32::MAX / 2);
    let diagonal = diagonal.clamp(-largest, largest) as i32;
    let cut = |x: &Expr| emit(TrilTriu { x: x.into(), out: New, diagonal, lower: !upper }).out;
    one(match x.dtype() {
        DType::Bool => cut(&x.cast(DType::I32)).cast(DType::Bool),
        _ => cut(&x),
    })
}

/// Reverses the first elements of each sequence of a batch, whose lengths must be known.
fn reverse_sequence(n: &mut NodeContext<'_, '_>) -> Outputs {
    let (batch, time) = (n.int_or("batch_axis", 1)?, n.int_or("time_axis", 0)?);
    let lengths = n.constant_ints(1)?.unwrap_or_default();
    let dims = n.known_dims(0)?;
    let (2.., 0 | 1, 0 | 1) = (dims.len(), batch, time) else {
        return Err(refuse("operator `ReverseSequence` needs its axes first"));
    };
    let (steps, count) = (dims[time as usize] as i64, dims[batch as usize] as i64);
    if batch == time || lengths.len() as i64 != count || lengths.iter().any(|n| !(0..=steps).contains(n)) {
        return Err(refuse("operator `ReverseSequence`: its lengths do not fit"));
    }
    check_table([steps, count].map(|dim| dim as usize))?;
    let x = n.input(0)?;
    let x = if time == 0 { x } else { swap_first(&x) };
    let mut places = vec![];
    for step in 0..steps {
        for (i, length) in lengths.iter().enumerate() {
            let from = if step < *length { length - 1 - step } else { step };
            places.push(from * count + i as i64);
        }
    }
    x.check()?;
    let own: Vec<i64> = x.dims().iter().map(|dim| dim.get().map_or(-1, |dim| dim as i64)).collect();
    let rows: Vec<i64> = [steps * count].into_iter().chain(own[2..].iter().copied()).collect();
    let places = n.ints_expr(&places)?;
    let moved = reshape(&reshape(&x, &rows).index_select(&places, 0), &own);
    one(if time == 0 { moved } else { swap_first(&moved) })
}

fn swap_first(x: &Expr) -> Expr {
    let axes: Vec<usize> = [1, 0].into_iter().chain(2..x.dims().len()).collect();
    permute(x, &axes)
}
