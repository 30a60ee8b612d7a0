//! Operators that read and write by index: gather, scatter, top k, one-hot.

use autobwd::{DType, Expr, New, Result, Tensor, emit};
use autobwd_ops::{
    DimExpr, Math, all_sizes,
    index::ScatterNdAdd,
    positions as positions_of, product,
    put::{PutAlongAxis, PutReduction},
    scatter::{GatherNd, Scatter, TakeAlongAxis},
    shape::ShapeOp,
    top_k::TopKV2,
    unique::Unique,
};

use super::{
    arith::{int_like, narrow_int, reshape, scalar},
    node::{NodeContext, Outputs, all, one, refuse},
    rules::{All, NodeRules},
};
use crate::elements::ElementType;

pub(super) const RULES: NodeRules = &[
    ("Gather", All, gather),
    ("GatherElements", All, gather_elements),
    ("GatherND", All, gather_nd),
    ("Scatter", All, scatter_elements),
    ("ScatterElements", All, scatter_elements),
    ("ScatterND", All, scatter_nd),
    ("TopK", All, top_k),
    ("OneHot", All, one_hot),
    ("Compress", All, compress),
    ("NonZero", All, non_zero),
    ("Unique", All, unique),
    ("ArrayFeatureExtractor", All, gather),
];

/// Indices from the start for those that may count from the end of a dimension.
fn from_start(index: &Expr, dim: &Expr) -> Expr {
    let zero = int_like(index, 0);
    index + &(&index.less_than(&zero).cast(index.dtype()) * dim)
}

/// A dimension of the first input in the dtype of indices, rank 0.
fn dim_like(n: &mut NodeContext<'_, '_>, index: &Expr, axis: usize) -> Result<Expr> {
    if let Some(dim) = n.dims(0)?.get(axis).and_then(|dim| dim.get()) {
        return Ok(int_like(index, dim as i64));
    }
    let x = n.input(0)?;
    let dims = emit(ShapeOp { input: (&x).into(), out: New }).out;
    Ok(reshape(&dims.slice(0, axis as i32, axis as i32 + 1), &[]).cast(index.dtype()))
}

fn gather(n: &mut NodeContext<'_, '_>) -> Outputs {
    let axis = n.int_or("axis", 0)?;
    let axis = n.axis(0, axis)?;
    let index = positions(n, 1, axis)?;
    let (x, shape) = (n.input(0)?, index.dims());
    if axis == 0 && x.dims().len() == 2 {
        return one(index.embedding(&x));
    }
    if shape.len() == 1 {
        return one(x.index_select(&index, axis as i32));
    }
    let taken = x.index_select(&reshape(&index, &[-1]), axis as i32);
    let (dims, taken_dims) = (all_sizes(&x), all_sizes(&index));
    one(taken.reshape_to(&[&dims[..axis], &taken_dims, &dims[axis + 1..]].concat()))
}

/// Indices along an axis of the first input, none of them negative.
fn positions(n: &mut NodeContext<'_, '_>, i: usize, axis: usize) -> Result<Expr> {
    if let Ok(Some(known)) = n.constant_ints(i) {
        let negative = known.iter().any(|at| *at < 0);
        let size = if negative { n.dims(0)?[axis].get() } else { Some(0) };
        if let Some(size) = size {
            let known: Vec<i64> =
                known.iter().map(|at| if *at < 0 { at + size as i64 } else { *at }).collect();
            let dims = n.known_dims(i)?;
            return n.tensor_expr(&Tensor::from_vec(dims, known)?);
        }
    }
    let index = n.input(i)?;
    let dim = dim_like(n, &index, axis)?;
    Ok(from_start(&index, &dim))
}

/// The input is cut to the dimensions of the indices.
fn gather_elements(n: &mut NodeContext<'_, '_>) -> Outputs {
    let axis = n.int_or("axis", 0)?;
    let axis = n.axis(0, axis)?;
    let index = positions(n, 1, axis)?;
    let mut x = n.input(0)?;
    for (i, (own, wanted)) in n.dims(0)?.iter().zip(n.dims(1)?.iter()).enumerate() {
        if let (Some(own), Some(wanted)) = (own.get(), wanted.get())
            && i != axis
            && wanted < own
        {
            x = super::slice::slice_axis(&x, i, 0, wanted as i64);
        }
    }
    let op = TakeAlongAxis { input: (&x).into(), index: (&index).into(), result: New, axis: axis as i32 };
    one(emit(op).result)
}

/// Indices of several dimensions, none of them negative.
fn multi_positions(n: &mut NodeContext<'_, '_>, i: usize, first: usize) -> Result<Expr> {
    let dims = n.dims(0)?;
    let count = n.dims(i)?.last().and_then(|dim| dim.get());
    let count =
        count.ok_or_else(|| refuse(format!("operator `{}` needs a known number of indices", n.op())))?;
    if first + count > dims.len() {
        return Err(refuse(format!("operator `{}`: {count} indices for {dims}", n.op())));
    }
    let index = n.input(i)?;
    if let Ok(Some(known)) = n.constant_ints(i)
        && known.iter().all(|at| *at >= 0)
    {
        return Ok(index);
    }
    let x = n.input(0)?;
    let sizes: Vec<DimExpr> = (first..first + count).map(|axis| x.dim(axis as i32)).collect();
    let sizes = n.sizes_expr(&sizes)?.cast(index.dtype());
    Ok(&index + &(&index.less_than(&int_like(&index, 0)).cast(index.dtype()) * &sizes))
}

fn gather_nd(n: &mut NodeContext<'_, '_>) -> Outputs {
    let batch = n.int_or("batch_dims", 0)?;
    let batch = usize::try_from(batch).ok().filter(|batch| *batch < n.rank(0).unwrap_or(0));
    let batch =
        batch.ok_or_else(|| refuse("attribute `batch_dims` of operator `GatherND` is missing or invalid"))?;
    let mut index = multi_positions(n, 1, batch)?;
    let x = n.input(0)?;
    if batch > 0 {
        let rank = index.dims().len();
        if rank <= batch {
            return Err(refuse("attribute `batch_dims` of operator `GatherND` is missing or invalid"));
        }
        let mut column = all_sizes(&index);
        column[rank - 1] = 1.into();
        // The place in the batch becomes an index.
        for axis in (0..batch).rev() {
            let mut places: Vec<DimExpr> = vec![1.into(); rank];
            places[axis] = column[axis].clone();
            let place = positions_of(&n.net(), &column[axis]).cast(index.dtype()).reshape_to(&places);
            index = autobwd_ops::concat(&[&place.expand_to(&column), &index], -1);
        }
    }
    one(emit(GatherNd { x: (&x).into(), index: (&index).into(), out: New }).out)
}

/// The row-major strides of dimensions.
fn strides(dims: &[DimExpr]) -> Vec<DimExpr> {
    let mut strides = vec![DimExpr::from(1); dims.len()];
    for i in (1..dims.len()).rev() {
        strides[i - 1] = &strides[i] * &dims[i];
    }
    strides
}

/// Integers times a size.
fn times(index: &Expr, size: &DimExpr) -> Expr {
    match size.known() {
        Some(1) => index.clone(),
        Some(n) => index * &int_like(index, n),
        None => index * &size.number(index.builder()).cast(index.dtype()),
    }
}

fn scatter_elements(n: &mut NodeContext<'_, '_>) -> Outputs {
    let axis = n.int_or("axis", 0)?;
    let axis = n.axis(0, axis)?;
    if n.rank(0)? != n.rank(1)? {
        return Err(refuse(format!("operator `{}`: indices of another rank are not supported", n.op())));
    }
    let index = positions(n, 1, axis)?.cast(DType::I64);
    let x = n.input(0)?;
    let rank = x.dims().len();
    let (dims, written) = (all_sizes(&x), all_sizes(&index));
    let strides = strides(&dims);
    let mut places = times(&index, &strides[axis]);
    for at in (0..rank).filter(|at| *at != axis) {
        let mut along = vec![DimExpr::from(1); rank];
        along[at] = written[at].clone();
        let place = positions_of(&n.net(), &written[at]).reshape_to(&along);
        places = &places + &times(&place, &strides[at]);
    }
    let updates = n.input(2)?;
    write(n, &dims, rank, &reshape(&places, &[-1]), &updates)
}

fn scatter_nd(n: &mut NodeContext<'_, '_>) -> Outputs {
    let index = multi_positions(n, 1, 0)?.cast(DType::I64);
    let x = n.input(0)?;
    let dims = all_sizes(&x);
    let count = n.dims(1)?.last().and_then(|dim| dim.get()).unwrap_or(0);
    let steps = n.sizes_expr(&strides(&dims[..count]))?;
    let rows = reshape(&(&index * &steps).sum(&[-1]), &[-1]);
    let updates = n.input(2)?;
    write(n, &dims, count, &rows, &updates)
}

/// Writes rows of the tensor, whose first `count` dimensions count rows.
fn write(
    n: &mut NodeContext<'_, '_>,
    dims: &[DimExpr],
    count: usize,
    rows: &Expr,
    updates: &Expr,
) -> Outputs {
    let x = n.input(0)?;
    let (height, width) = (product(&dims[..count]), product(&dims[count..]));
    let table = x.reshape_to(&[height, width.clone()]);
    let updates = updates.reshape_to(&[rows.dim(0), width]);
    let out = match n.text_or("reduction", "none")? {
        "none" => {
            let (x, ids, updates) = ((&table).into(), rows.into(), (&updates).into());
            emit(Scatter { x, ids, updates, out: New, overwrite: true }).out
        }
        "add" if x.dtype().is_float() => {
            let index = reshape(rows, &[-1, 1]);
            let (x, index, updates) = ((&table).into(), (&index).into(), (&updates).into());
            emit(ScatterNdAdd { x, index, updates, out: New }).out
        }
        other => {
            let reduce = match other {
                "add" => PutReduction::Add,
                "mul" => PutReduction::Mul,
                "min" => PutReduction::Amin,
                "max" => PutReduction::Amax,
                _ => {
                    let text = format!(
                        "attribute `reduction` = `{other}` of operator `{}` is not supported",
                        n.op()
                    );
                    return Err(refuse(text));
                }
            };
            let index = rows.unsqueeze(&[1]).expand_to(&all_sizes(&updates));
            let (input, index, value) = ((&table).into(), (&index).into(), (&updates).into());
            let op = PutAlongAxis { input, index, value, result: New, axis: 0, reduce, include_self: true };
            emit(op).result
        }
    };
    one(out.reshape_to(dims))
}

fn top_k(n: &mut NodeContext<'_, '_>) -> Outputs {
    n.set_type(1, ElementType::I64);
    let element = n.element(0)?;
    n.set_type(0, element);
    let axis = n.int_or("axis", -1)?;
    let axis = n.axis(0, axis)? as i32;
    let (largest, _sorted) = (n.flag("largest", true)?, n.flag("sorted", true)?);
    let (k, k_tensor) = match n.version() {
        ..10 => (n.int_or("k", 0)?, None),
        _ => match n.planned_ints(1)? {
            Some(k) => (k.first().copied().unwrap_or(0), None),
            None => (1, Some(n.input(1)?)),
        },
    };
    let x = n.input(0)?;
    let wide = if x.dtype() == DType::U8 { x.cast(DType::I32) } else { x.clone() };
    let k_tensor = k_tensor.as_ref().map(Into::into);
    let op = TopKV2 {
        x: (&wide).into(),
        k_tensor,
        out: New,
        indices: New,
        k: narrow_int(k)?,
        axis,
        largest,
        sorted: true,
    };
    let op = emit(op);
    all([if x.dtype() == DType::U8 { op.out.cast(DType::U8) } else { op.out }, op.indices])
}

/// `off + (on - off) · (index = i)`; indices out of range give no 1.
fn one_hot(n: &mut NodeContext<'_, '_>) -> Outputs {
    let axis = n.int_or("axis", -1)?;
    let depth = n.constant_floats(1)?.and_then(|depth| depth.first().copied()).unwrap_or(0.0);
    if !(1.0..1e6).contains(&depth) {
        return Err(refuse(format!("operator `OneHot` of {depth} classes is not supported")));
    }
    let element = n.element(2)?;
    n.set_type(0, element);
    let (index, values) = (n.input(0)?, n.input(2)?);
    let rank = index.dims().len() as i64 + 1;
    let axis = if axis < 0 { axis + rank } else { axis };
    if !(0..rank).contains(&axis) {
        return Err(refuse("attribute `axis` of operator `OneHot` is missing or invalid"));
    }
    let classes: Vec<i64> = (0..depth as i64).collect();
    let mut shape = vec![1; rank as usize];
    shape[axis as usize] = classes.len();
    let classes = n.tensor_expr(&Tensor::from_vec(shape, classes)?)?.cast(index.dtype());
    let index = index.unsqueeze(&[axis as i32]);
    let size = scalar(&index, index.dtype(), depth);
    let index = &index + &(&index.less_than(&int_like(&index, 0)).cast(index.dtype()) * &size);
    let hot = index.equal(&classes);
    let [off, on] = [0, 1].map(|i| values.slice(0, i, i + 1));
    let sizes = all_sizes(&hot);
    one(hot.where_cond(&on.expand_to(&sizes), &off.expand_to(&sizes)))
}

/// The slices for which a known condition holds.
fn compress(n: &mut NodeContext<'_, '_>) -> Outputs {
    let axis = n.int("axis")?;
    let x = n.input(0)?;
    let places = match n.constant_floats(1) {
        Ok(Some(condition)) => {
            let set = condition.iter().zip(0..).filter(|(x, _)| **x != 0.0);
            n.ints_expr(&set.map(|(_, i)| i).collect::<Vec<i64>>())?
        }
        _ => reshape(&n.input(1)?.nonzero(), &[-1]),
    };
    match axis {
        Some(axis) => one(x.index_select(&places, n.axis(0, axis)? as i32)),
        None => one(reshape(&x, &[-1]).index_select(&places, 0)),
    }
}

fn non_zero(n: &mut NodeContext<'_, '_>) -> Outputs {
    one(n.input(0)?.nonzero().transpose(&[1, 0]))
}

fn unique(n: &mut NodeContext<'_, '_>) -> Outputs {
    let axis = n.int("axis")?.map(|axis| Ok(n.axis(0, axis)? as i32)).transpose()?;
    let is_sorted = n.int_or("sorted", 1)? != 0;
    let (axis, dtype) = (axis.into_iter().collect(), DType::I64);
    let [indices, index, counts] = [(); 3].map(|()| Some(New));
    let x = n.input(0)?;
    let op = emit(Unique { x: (&x).into(), out: New, indices, index, counts, axis, is_sorted, dtype });
    all([Some(op.out), op.indices, op.index, op.counts].into_iter().flatten())
}
