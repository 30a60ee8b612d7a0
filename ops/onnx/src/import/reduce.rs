//! Reductions, softmax, cumulative sums and products, positions of extremes.

use autobwd::{DType, Expr, New, Result, emit};
use autobwd_ops::{
    Math,
    cumsum::Cumsum,
    fill::FillConstant,
    reduce::{
        FrobeniusNorm, LogicalReduceAttrs, Logsumexp, ReduceAll, ReduceAmax, ReduceAmin, ReduceAny,
        ReduceAttrs, ReduceMean, ReduceProd, ReduceSum,
    },
    top_k::{ArgAttrs, ArgMax, ArgMin},
};

use super::{
    arith::{int_like, narrow, narrow_int, scalar_like},
    node::{NodeContext, Outputs, one, refuse},
    rules::{All, Native, NodeRules},
};
use crate::elements::ElementType;

pub(super) const RULES: NodeRules = &[
    ("ReduceSum", Native, |n| reduce(n, 13, Expr::clone, sum, Expr::clone)),
    ("ReduceMean", Native, |n| reduce(n, 18, Expr::clone, mean, Expr::clone)),
    ("ReduceProd", Native, |n| reduce(n, 18, Expr::clone, product, Expr::clone)),
    ("ReduceMax", All, |n| reduce(n, 18, Expr::clone, maximum, Expr::clone)),
    ("ReduceMin", All, |n| reduce(n, 18, Expr::clone, minimum, Expr::clone)),
    ("ReduceL1", Native, |n| reduce(n, 18, Math::abs, sum, Expr::clone)),
    ("ReduceL2", Native, |n| reduce(n, 18, Expr::clone, euclidean, Expr::clone)),
    ("ReduceLogSum", Native, |n| reduce(n, 18, Expr::clone, sum, Math::log)),
    ("ReduceSumSquare", Native, |n| reduce(n, 18, |x| x * x, sum, Expr::clone)),
    ("ReduceLogSumExp", Native, |n| reduce(n, 18, Expr::clone, log_sum_exp, Expr::clone)),
    ("Softmax", Native, |n| softmax(n, |x, axis| x.softmax(axis))),
    ("LogSoftmax", Native, |n| softmax(n, |x, axis| x.log_softmax(axis))),
    ("Hardmax", Native, |n| softmax(n, hardmax)),
    ("CumSum", Native, cumulative_sum),
    ("CumProd", Native, cumulative_product),
    ("ArgMax", All, |n| extreme(n, true)),
    ("ArgMin", All, |n| extreme(n, false)),
    ("LpNormalization", Native, lp_normalization),
];

/// A reduction over axes to size 1.
type ReduceMethod = fn(&Expr, &[i64]) -> Expr;

fn sum(x: &Expr, axes: &[i64]) -> Expr {
    // The sum of int32 is int32 in ONNX.
    let out_dtype = (x.dtype() == DType::I32).then_some(DType::I32);
    let reduce = ReduceAttrs::keeping(narrow(axes)).out_dtype(out_dtype);
    emit(ReduceSum { x: x.into(), out: New, reduce }).out
}

/// The gradient at 0 is 0, as of PyTorch's norms.
fn euclidean(x: &Expr, axes: &[i64]) -> Expr {
    if !x.dtype().is_float() {
        return sum(&x.square(), axes).sqrt();
    }
    emit(FrobeniusNorm { x: x.into(), out: New, reduce: ReduceAttrs::keeping(narrow(axes)) }).out
}

fn mean(x: &Expr, axes: &[i64]) -> Expr {
    emit(ReduceMean { x: x.into(), out: New, reduce: ReduceAttrs::keeping(narrow(axes)) }).out
}

fn product(x: &Expr, axes: &[i64]) -> Expr {
    emit(ReduceProd { x: x.into(), out: New, reduce: ReduceAttrs::keeping(narrow(axes)) }).out
}

/// Ties share the gradient, as in `torch.amax`.
fn maximum(x: &Expr, axes: &[i64]) -> Expr {
    match x.dtype() {
        DType::Bool => logical(x, axes, true),
        DType::U8 => maximum(&x.cast(DType::I32), axes).cast(DType::U8),
        _ => emit(ReduceAmax { x: x.into(), out: New, reduce: ReduceAttrs::keeping(narrow(axes)) }).out,
    }
}

fn minimum(x: &Expr, axes: &[i64]) -> Expr {
    match x.dtype() {
        DType::Bool => logical(x, axes, false),
        DType::U8 => minimum(&x.cast(DType::I32), axes).cast(DType::U8),
        _ => emit(ReduceAmin { x: x.into(), out: New, reduce: ReduceAttrs::keeping(narrow(axes)) }).out,
    }
}

fn logical(x: &Expr, axes: &[i64], any: bool) -> Expr {
    let reduce = LogicalReduceAttrs::over(axes).keep_dim(true);
    match any {
        true => emit(ReduceAny { x: x.into(), out: New, reduce }).out,
        false => emit(ReduceAll { x: x.into(), out: New, reduce }).out,
    }
}

fn log_sum_exp(x: &Expr, axes: &[i64]) -> Expr {
    emit(Logsumexp { x: x.into(), out: New, axis: narrow(axes), keepdim: true, reduce_all: false }).out
}

/// `after(reduction(before(x)))`; axes are an input from version `since` on.
fn reduce(
    n: &mut NodeContext<'_, '_>,
    since: i64,
    before: fn(&Expr) -> Expr,
    reduction: ReduceMethod,
    after: fn(&Expr) -> Expr,
) -> Outputs {
    let keep = n.flag("keepdims", true)?;
    let axes = if n.version() < since { n.ints("axes")? } else { n.constant_ints(1)? }.unwrap_or_default();
    let nothing = n.flag("noop_with_empty_axes", false)? && axes.is_empty();
    let x = n.input(0)?;
    let rank = x.dims().len();
    let terms = before(&x);
    if nothing || rank == 0 {
        let single = match n.op() {
            "ReduceLogSumExp" => terms,
            "ReduceL2" => terms.abs(),
            _ => after(&terms),
        };
        return one(single);
    }
    let mut axes =
        axes.iter().map(|axis| n.axis(0, *axis).map(|axis| axis as i64)).collect::<Result<Vec<_>>>()?;
    if axes.is_empty() {
        axes = (0..rank as i64).collect();
    }
    let is_empty = |axis: &i64| terms.dims().get(*axis as usize).and_then(|dim| dim.get()) == Some(0);
    if axes.iter().any(is_empty) && matches!(n.op(), "ReduceMax" | "ReduceMin" | "ReduceLogSumExp") {
        return nothing_reduced(n, &terms, &axes, keep);
    }
    let reduced = after(&reduction(&terms, &axes));
    one(if keep { reduced } else { reduced.squeeze(&narrow(&axes)) })
}

/// The result of a reduction over no elements: the smallest or the largest number.
fn nothing_reduced(n: &NodeContext<'_, '_>, x: &Expr, axes: &[i64], keep: bool) -> Outputs {
    let value = if n.op() == "ReduceMin" { f64::INFINITY } else { f64::NEG_INFINITY };
    if !x.dtype().is_float() {
        return Err(refuse(format!("operator `{}` of no integers is not supported", n.op())));
    }
    let reduced = |axis: &usize| axes.contains(&(*axis as i64));
    let dims = n.known_dims(0)?.into_iter().enumerate();
    let dims = dims.filter(|(axis, _)| keep || !reduced(axis));
    let shape = dims.map(|(axis, dim)| if reduced(&axis) { 1 } else { dim as i64 }).collect();
    let str_value = super::arith::number_text(value, x.dtype());
    let op = FillConstant { shape, dtype: x.dtype(), str_value, ..FillConstant::of(New) };
    one(n.net().emit(op).out)
}

/// Before version 13, all dimensions from `axis` on are one.
fn softmax(n: &mut NodeContext<'_, '_>, f: impl Fn(&Expr, i32) -> Expr) -> Outputs {
    let old = n.version() < 13;
    let axis = n.int_or("axis", if old { 1 } else { -1 })?;
    let x = n.input(0)?;
    let rank = x.dims().len();
    if rank == 0 {
        return Err(refuse(format!("operator `{}` of rank 0 is not supported", n.op())));
    }
    let axis = n.axis(0, axis)?;
    if !old || axis + 1 == rank {
        return one(f(&x, axis as i32));
    }
    let dims: Vec<i64> = n.known_dims(0)?.iter().map(|dim| *dim as i64).collect();
    let columns: i64 = dims[axis..].iter().product();
    let flat = super::arith::reshape(&x, &[-1, columns]);
    one(super::arith::reshape(&f(&flat, 1), &dims))
}

/// 1 at the first maximum along the axis, 0 elsewhere.
fn hardmax(x: &Expr, axis: i32) -> Expr {
    let at = emit(ArgMax { x: x.into(), out: New, arg: ArgAttrs::along(axis.into()).keepdims(true) }).out;
    let ones = super::arith::filled_like(x, 1.0, DType::I64);
    let places = cumulative(&ones, axis, true, false);
    places.equal(&at).cast(x.dtype())
}

fn cumulative(x: &Expr, axis: i32, exclusive: bool, reverse: bool) -> Expr {
    emit(Cumsum { x: x.into(), out: New, axis, flatten: false, exclusive, reverse }).out
}

fn cumulative_sum(n: &mut NodeContext<'_, '_>) -> Outputs {
    let axis = scalar_axis(n, 1)?;
    let (exclusive, reverse) = (n.flag("exclusive", false)?, n.flag("reverse", false)?);
    let x = n.input(0)?;
    one(cumulative(&x, axis, exclusive, reverse))
}

fn scalar_axis(n: &NodeContext<'_, '_>, i: usize) -> Result<i32> {
    let axis = n.constant_ints(i)?.and_then(|axis| axis.first().copied());
    let axis = axis.ok_or_else(|| refuse(format!("operator `{}` lacks its axis", n.op())))?;
    narrow_int(n.axis(0, axis)? as i64)
}

fn cumulative_product(n: &mut NodeContext<'_, '_>) -> Outputs {
    let axis = scalar_axis(n, 1)?;
    let (exclusive, reverse) = (n.flag("exclusive", false)?, n.flag("reverse", false)?);
    let x = n.input(0)?;
    let dtype = x.dtype();
    let flipped = if reverse { x.flip(&[axis]) } else { x };
    let shifted = match exclusive {
        false => flipped,
        true => {
            let rest = super::slice::slice_axis(&flipped, axis as usize, 0, -1);
            super::pad::pad_constant(&rest, &[(axis as usize, 1, 0)], 1.0)?
        }
    };
    let product = match dtype {
        DType::F32 | DType::F64 => shifted.cumprod(axis),
        _ => shifted.cast(DType::F64).cumprod(axis).cast(dtype),
    };
    one(if reverse { product.flip(&[axis]) } else { product })
}

/// The position of the largest or smallest element; of the last one, if that is wanted, from the other end.
fn extreme(n: &mut NodeContext<'_, '_>, largest: bool) -> Outputs {
    n.set_type(0, ElementType::I64);
    let (axis, keep) = (n.int_or("axis", 0)?, n.flag("keepdims", true)?);
    let last = n.flag("select_last_index", false)?;
    let x = n.input(0)?;
    let axis = n.axis(0, axis)?;
    let seen = if last { x.flip(&[axis as i32]) } else { x.clone() };
    let arg = ArgAttrs::along(axis as i64).keepdims(keep);
    let at = match largest {
        true => emit(ArgMax { x: (&seen).into(), out: New, arg }).out,
        false => emit(ArgMin { x: (&seen).into(), out: New, arg }).out,
    };
    if !last {
        return one(at);
    }
    let dim = x.dims()[axis]
        .get()
        .ok_or_else(|| refuse("attribute `select_last_index` needs a known dimension"))?;
    one(int_like(&at, dim as i64 - 1) - at)
}

/// `x / ‖x‖` along an axis; 0 where the norm is 0.
fn lp_normalization(n: &mut NodeContext<'_, '_>) -> Outputs {
    let (axis, p) = (n.int_or("axis", -1)?, n.int_or("p", 2)?);
    let axis = n.axis(0, axis)? as i64;
    let x = n.input(0)?;
    let norm = match p {
        1 => sum(&x.abs(), &[axis]),
        2 => euclidean(&x, &[axis]),
        other => {
            return Err(refuse(format!(
                "attribute `p` = {other} of operator `LpNormalization` is not supported"
            )));
        }
    };
    let safe = &norm + &norm.equal(&scalar_like(&norm, 0.0)).cast(x.dtype());
    one(&x / &safe)
}
