//! Pooling.

use autobwd::{DType, Expr, New, Result, Tensor, emit};
use autobwd_ops::{
    Math, concat,
    fill::FillConstant,
    pool::{Pool2dOp, PoolAttrs, PoolingType},
    scatter::{Scatter, TakeAlongAxis},
    top_k::{ArgAttrs, ArgMax},
};

use super::{
    arith::{check_table, reshape, scalar_like},
    node::{NodeContext, NodeOutput, Outputs, one, refuse},
    pad::pad_constant,
    rules::{All, Native, NodeRules},
    slice::strided,
    windows::{WindowAttributes, spatial, windows},
};
use crate::elements::ElementType;

pub(super) const RULES: NodeRules = &[
    ("MaxPool", All, max_pool),
    ("AveragePool", Native, average_pool),
    ("LpPool", Native, lp_pool),
    ("MaxUnpool", Native, max_unpool),
    ("GlobalAveragePool", Native, |n| global(n, |x, axes| x.mean_over(axes))),
    ("GlobalMaxPool", Native, global_max_pool),
];

/// The numbers of windows, and with `ceil_mode` the padding that they reach into.
fn counts(n: &NodeContext<'_, '_>, windows: &mut WindowAttributes) -> Result<Vec<i64>> {
    let ceil = n.flag("ceil_mode", false)?;
    let dims = n.spatial_dims()?;
    let mut counts = vec![];
    for (d, dim) in dims.into_iter().enumerate().take(windows.sizes.len()) {
        let (dim, stride, (before, behind)) = (dim as i64, windows.strides[d], windows.pads[d]);
        let room = dim + before + behind - windows.extent(d);
        if room < 0 {
            return Err(refuse(format!("operator `{}`: windows are larger than the input", n.op())));
        }
        let mut count = room / stride + 1;
        // A window starts within the input or the padding before it.
        if ceil && room % stride != 0 && count * stride < dim + before {
            count += 1;
            windows.pads[d].1 = (count - 1) * stride + windows.extent(d) - dim - before;
        }
        counts.push(count);
    }
    Ok(counts)
}

fn pool_windows(n: &NodeContext<'_, '_>) -> Result<WindowAttributes> {
    let rank = spatial(n)?;
    let sizes = n.ints("kernel_shape")?.filter(|sizes| sizes.len() == rank);
    windows(
        n,
        sizes.ok_or_else(|| {
            refuse(format!("attribute `kernel_shape` of operator `{}` is missing or invalid", n.op()))
        })?,
    )
}

/// Whether the library's pooling has these windows.
fn is_plain(windows: &WindowAttributes) -> bool {
    let small = windows
        .sizes
        .iter()
        .zip(&windows.pads)
        .all(|(size, (before, behind))| before < size && behind < size);
    windows.sizes.len() <= 2 && windows.dilations.iter().all(|dilation| *dilation == 1) && small
}

/// Pooling of images of unknown size by the library, where its windows are the same ones.
fn pool_of_unknown(
    n: &mut NodeContext<'_, '_>,
    windows: &WindowAttributes,
    pooling: PoolingType,
) -> Result<Option<Expr>> {
    let ceil = n.flag("ceil_mode", false)?;
    let counted = n.flag("count_include_pad", false)?;
    // No window starts behind the input.
    let same = |d: usize| windows.pads[d].1 + windows.strides[d] <= windows.sizes[d];
    let same = !ceil || (!counted && (0..windows.sizes.len()).all(same));
    let unknown = n.dims(0)?.iter().skip(2).any(|dim| dim.get().is_none());
    if !unknown || !same || !is_plain(windows) || n.wants(1) {
        return Ok(None);
    }
    let x = n.input(0)?;
    if !x.dtype().is_float() {
        return Ok(None);
    }
    pool2d(&x, windows, pooling, !counted, ceil).map(Some)
}

fn pool2d(
    x: &Expr,
    windows: &WindowAttributes,
    pooling: PoolingType,
    exclusive: bool,
    ceil: bool,
) -> Result<Expr> {
    let flat = windows.sizes.len() == 1;
    let image = if flat { x.unsqueeze(&[2]) } else { x.clone() };
    let pool = PoolAttrs::new(pooling, WindowAttributes::image(&windows.sizes))
        .strides(WindowAttributes::image(&windows.strides))
        .paddings(windows.image_pads()?)
        .exclusive(exclusive)
        .ceil_mode(ceil);
    let out = emit(Pool2dOp { x: (&image).into(), out: New, pool }).out;
    Ok(if flat { out.squeeze(&[2]) } else { out })
}

/// The elements of all windows: one tensor for each place in a window, with the places.
fn taps(x: &Expr, windows: &WindowAttributes, counts: &[i64], padding: f64) -> Result<Vec<(Vec<i64>, Expr)>> {
    let size = windows.sizes.iter().try_fold(1_i64, |all, size| all.checked_mul(*size));
    if size.is_none_or(|size| size > 1 << 12) {
        return Err(refuse(format!("windows of {:?} elements are not supported", windows.sizes)));
    }
    if counts.iter().any(|count| *count < 1) {
        return Err(refuse("windows are larger than the input"));
    }
    let lengths: Vec<_> =
        windows.pads.iter().enumerate().map(|(d, (before, behind))| (d + 2, *before, *behind)).collect();
    let mut parts = vec![(vec![], pad_constant(x, &lengths, padding)?)];
    for (d, count) in counts.iter().enumerate() {
        let mut next = vec![];
        for (places, part) in &parts {
            for tap in 0..windows.sizes[d] {
                let mut places: Vec<i64> = places.clone();
                places.push(tap);
                let (first, stride) = (tap * windows.dilations[d], windows.strides[d]);
                next.push((places, strided(part, d + 2, first, first + (count - 1) * stride + 1, stride)?));
            }
        }
        parts = next;
    }
    Ok(parts)
}

fn max_pool(n: &mut NodeContext<'_, '_>) -> Outputs {
    let mut windows = pool_windows(n)?;
    if let Some(out) = pool_of_unknown(n, &windows, PoolingType::Max)? {
        n.ignore(&["storage_order"]);
        return one(out);
    }
    let counts = counts(n, &mut windows)?;
    let columns_first = n.flag("storage_order", false)?;
    let element = n.element(0)?;
    n.set_type(0, element);
    n.set_type(1, ElementType::I64);
    let x = n.input(0)?;
    let dtype = x.dtype();
    let x = if dtype.is_float() { x } else { x.cast(DType::F32) };
    let back = |out: Expr| if dtype.is_float() { out } else { out.cast(dtype) };
    if is_plain(&windows) && !n.wants(1) {
        return one(back(pool2d(&x, &windows, PoolingType::Max, true, false)?));
    }
    let taps = taps(&x, &windows, &counts, f64::NEG_INFINITY)?;
    if !n.wants(1) {
        // Of equal elements, `maximum` gives its second operand the gradient: the first one of the window.
        let largest = taps.iter().map(|(_, tap)| tap.clone()).reduce(|largest, tap| tap.maximum(&largest));
        return one(back(largest.ok_or_else(|| refuse("operator `MaxPool` without windows"))?));
    }
    let stacked: Vec<Expr> = taps.iter().map(|(_, tap)| tap.unsqueeze(&[0])).collect();
    let all = concat(&stacked.iter().collect::<Vec<_>>(), 0);
    let at = emit(ArgMax { x: (&all).into(), out: New, arg: ArgAttrs::along(0) }).out;
    let positions = positions(n, &windows, &counts, columns_first, &taps, &at)?;
    let index = at.unsqueeze(&[0]);
    let chosen =
        emit(TakeAlongAxis { input: (&all).into(), index: (&index).into(), result: New, axis: 0 }).result;
    Ok(vec![NodeOutput::Expr(back(chosen.squeeze(&[0]))), NodeOutput::Expr(positions)])
}

/// The positions of the largest elements in the input, counted over all of it.
fn positions(
    n: &NodeContext<'_, '_>,
    windows: &WindowAttributes,
    counts: &[i64],
    columns_first: bool,
    taps: &[(Vec<i64>, Expr)],
    at: &Expr,
) -> Result<Expr> {
    let dims = n.known_dims(0)?;
    let sizes: Vec<i64> = dims[2..].iter().map(|dim| *dim as i64).collect();
    let mut strides = vec![1; sizes.len()];
    if columns_first {
        (1..sizes.len()).for_each(|d| strides[d] = strides[d - 1] * sizes[d - 1]);
    } else {
        (1..sizes.len()).rev().for_each(|d| strides[d - 1] = strides[d] * sizes[d]);
    }
    let offset = |places: &Vec<i64>| -> i64 {
        places.iter().enumerate().map(|(d, tap)| tap * windows.dilations[d] * strides[d]).sum()
    };
    let offsets = n.ints_expr(&taps.iter().map(|(places, _)| offset(places)).collect::<Vec<_>>())?;
    check_table(dims[..2].iter().copied().chain(counts.iter().map(|count| *count as usize)))?;
    let outer = (dims[0] * dims[1]) as i64;
    let inner: i64 = counts.iter().product();
    let size: i64 = sizes.iter().product();
    let origin = |mut i: i64| {
        let mut origin = i / inner * size;
        for d in (0..counts.len()).rev() {
            origin += (i % counts[d] * windows.strides[d] - windows.pads[d].0) * strides[d];
            i /= counts[d];
        }
        origin
    };
    let shape: Vec<i64> = dims[..2].iter().map(|dim| *dim as i64).chain(counts.iter().copied()).collect();
    let origins = n.ints_expr(&(0..outer * inner).map(origin).collect::<Vec<_>>())?;
    let moved = offsets.index_select(&reshape(at, &[-1]), 0);
    Ok(reshape(&(&origins + &moved), &shape))
}

fn average_pool(n: &mut NodeContext<'_, '_>) -> Outputs {
    let mut windows = pool_windows(n)?;
    if let Some(out) = pool_of_unknown(n, &windows, PoolingType::Avg)? {
        return one(out);
    }
    let padded: Vec<(i64, i64)> = windows.pads.clone();
    let counts = counts(n, &mut windows)?;
    let counted = n.flag("count_include_pad", false)?;
    let x = n.input(0)?;
    if is_plain(&windows) && (!counted || windows.pads == padded) {
        return one(pool2d(&x, &windows, PoolingType::Avg, !counted, false)?);
    }
    let sum =
        taps(&x, &windows, &counts, 0.0)?.into_iter().map(|(_, tap)| tap).reduce(|sum, tap| &sum + &tap);
    let sum = sum.ok_or_else(|| refuse("operator `AveragePool` without windows"))?;
    // How many elements of each window count, along each dimension.
    let dims = n.spatial_dims()?;
    check_table(counts.iter().map(|count| *count as usize))?;
    let mut shares = vec![1.0];
    for (d, (before, behind)) in padded.iter().enumerate() {
        let (low, high) = if counted { (-before, dims[d] as i64 + behind) } else { (0, dims[d] as i64) };
        let count = |window: i64| {
            let start = window * windows.strides[d] - windows.pads[d].0;
            let places = (0..windows.sizes[d]).map(|tap| start + tap * windows.dilations[d]);
            places.filter(|at| (low..high).contains(at)).count().max(1) as f64
        };
        let own: Vec<f64> = (0..counts[d]).map(count).collect();
        shares = shares.iter().flat_map(|share| own.iter().map(move |own| share * own)).collect();
    }
    let shape: Vec<usize> = counts.iter().map(|count| *count as usize).collect();
    let shares = n.tensor_expr(&Tensor::from_vec(shape, shares)?)?.cast(x.dtype());
    one(&sum / &shares)
}

/// `(Σ |x|ᵖ)^(1 / p)` over each window.
fn lp_pool(n: &mut NodeContext<'_, '_>) -> Outputs {
    let p = n.int_or("p", 2)? as f64;
    let mut windows = pool_windows(n)?;
    let counts = counts(n, &mut windows)?;
    let x = n.input(0)?.abs();
    let powers = x.pow(&scalar_like(&x, p));
    let sum =
        taps(&powers, &windows, &counts, 0.0)?.into_iter().map(|(_, tap)| tap).reduce(|sum, tap| &sum + &tap);
    let sum = sum.ok_or_else(|| refuse("operator `LpPool` without windows"))?;
    one(sum.pow(&scalar_like(&sum, 1.0 / p)))
}

/// Writes elements to their positions, which `MaxPool` has given.
fn max_unpool(n: &mut NodeContext<'_, '_>) -> Outputs {
    let windows = pool_windows(n)?;
    let dims = n.known_dims(0)?;
    let own = |d: usize| {
        let (before, behind) = windows.pads[d];
        (dims[d + 2] as i64 - 1) * windows.strides[d] - before - behind + windows.sizes[d]
    };
    let inferred: Vec<i64> =
        dims[..2].iter().map(|dim| *dim as i64).chain((0..windows.sizes.len()).map(own)).collect();
    if inferred.iter().any(|dim| *dim < 0) {
        return Err(refuse(format!("operator `MaxUnpool` to {inferred:?} is not supported")));
    }
    check_table(inferred.iter().map(|dim| *dim as usize))?;
    let shape = n.constant_ints(2)?;
    let (x, index) = (n.input(0)?, n.input(1)?);
    if shape.as_ref().is_some_and(|shape| shape.len() != inferred.len()) {
        return Err(refuse("operator `MaxUnpool`: an output of another rank is not supported"));
    }
    let sizes = |shape: &[i64]| shape.iter().copied().product::<i64>();
    let out = shape.unwrap_or_else(|| inferred.clone());
    if out.iter().any(|dim| !(0..1 << 24).contains(dim))
        || out.iter().try_fold(1_i64, |n, dim| n.checked_mul(*dim)).is_none()
    {
        return Err(refuse(format!("operator `MaxUnpool` to {out:?} is not supported")));
    }
    // Positions are those in the inferred output.
    let zeros = n.net().emit(FillConstant {
        shape: vec![sizes(&inferred), 1],
        dtype: x.dtype(),
        ..FillConstant::of(New)
    });
    let (updates, ids) = (reshape(&x, &[-1, 1]), reshape(&index, &[-1]));
    let op = Scatter {
        x: (&zeros.out).into(),
        ids: (&ids).into(),
        updates: (&updates).into(),
        out: New,
        overwrite: true,
    };
    let flat = emit(op).out;
    if out == inferred {
        return one(reshape(&flat, &out));
    }
    let lengths: Vec<_> =
        out.iter().zip(&inferred).enumerate().map(|(d, (to, from))| (d, 0, to - from)).collect();
    one(pad_constant(&reshape(&flat, &inferred), &lengths, 0.0)?)
}

/// A reduction of all spatial dimensions to size 1.
fn global(n: &mut NodeContext<'_, '_>, reduce: impl Fn(&Expr, &[i32]) -> Expr) -> Outputs {
    let rank = spatial(n)? as i32 + 2;
    let axes: Vec<i32> = (2..rank).collect();
    one(reduce(&n.input(0)?, &axes).unsqueeze(&axes))
}

/// The first of equal elements is the largest, as of other windows.
fn global_max_pool(n: &mut NodeContext<'_, '_>) -> Outputs {
    let last = spatial(n)? as i32 + 1;
    let flat = n.input(0)?.flatten(2, last).unsqueeze(&[3]);
    let pool = PoolAttrs::new(PoolingType::Max, vec![1, 1]).global_pooling(true);
    let out = emit(Pool2dOp { x: (&flat).into(), out: New, pool }).out;
    let axes: Vec<i32> = (4..=last).collect();
    one(match last {
        2 => out.squeeze(&[3]),
        _ => out.unsqueeze(&axes),
    })
}
