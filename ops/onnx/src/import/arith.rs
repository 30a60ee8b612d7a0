//! Compositions that several rules use.

use autobwd::{DType, Dims, Expr, New, Result, emit};
use autobwd_ops::{
    Math,
    fill::FillAnyLike,
    shape::{ExpandV2, Reshape2},
};

use super::node::refuse;

/// Axes and ends of slices as operators take them; larger ones saturate, which is what large ends mean. Sizes must not:
/// [`narrow_sizes`].
pub(super) fn narrow(ints: &[i64]) -> Vec<i32> {
    ints.iter().map(|x| (*x).clamp(i32::MIN.into(), i32::MAX.into()) as i32).collect()
}

/// The most elements of a table that is computed when a model is imported.
const TABLE: usize = 1 << 24;

/// Rejects tables that are too large.
pub(super) fn check_table(counts: impl IntoIterator<Item = usize>) -> Result<()> {
    let count = counts.into_iter().try_fold(1_usize, |all, count| all.checked_mul(count));
    match count.is_some_and(|count| count <= TABLE) {
        true => Ok(()),
        false => Err(refuse(format!("tables of more than {TABLE} elements are not supported"))),
    }
}

/// A dimension, if it is known; that of a failed expression is not.
pub(super) fn dim_of(x: &Expr, axis: usize) -> Option<i64> {
    x.dims().get(axis).and_then(|dim| dim.get()).and_then(|dim| i64::try_from(dim).ok())
}

/// An integer as operators take it.
pub(super) fn narrow_int(x: i64) -> Result<i32> {
    i32::try_from(x).map_err(|_| refuse(format!("{x} is too large")))
}

/// Sizes as operators take them.
pub(super) fn narrow_sizes(sizes: &[i64]) -> Result<Vec<i32>> {
    sizes.iter().map(|size| narrow_int(*size)).collect()
}

/// A constant of the dtype of an integer tensor, rank 0.
pub(super) fn int_like(x: &Expr, value: i64) -> Expr {
    scalar_like(x, value as f64)
}

/// A tensor in that dtype: itself, or converted.
pub(super) fn in_dtype(x: &Expr, dtype: DType) -> Expr {
    if x.dtype() == dtype { x.clone() } else { x.cast(dtype) }
}

/// A number of the dtype of a tensor, rank 0.
pub(super) fn scalar_like(x: &Expr, value: f64) -> Expr {
    scalar(x, x.dtype(), value)
}

/// A number, rank 0, in the program of `x`.
pub(super) fn scalar(x: &Expr, dtype: DType, value: f64) -> Expr {
    use autobwd_ops::fill::FillConstant;
    let str_value = number_text(value, dtype);
    let op = FillConstant { shape: vec![], dtype, value: value as f32, str_value, ..FillConstant::of(New) };
    x.builder().emit(op).out
}

/// A number as the attribute `str_value` has it.
pub(super) fn number_text(value: f64, dtype: DType) -> String {
    match dtype.is_float() {
        true if value.is_nan() => "nan".to_string(),
        true if value.is_infinite() => if value > 0.0 { "inf" } else { "-inf" }.to_string(),
        true => format!("{value:?}"),
        false => format!("{}", value as i64),
    }
}

/// A tensor of the shape of `x` with one value.
pub(super) fn filled_like(x: &Expr, value: f64, dtype: DType) -> Expr {
    emit(FillAnyLike { x: x.into(), out: New, value, dtype: Some(dtype) }).out
}

/// The shape that two shapes broadcast to, if it is known.
pub(super) fn common_dims(x: &Dims, y: &Dims) -> Option<Vec<usize>> {
    let rank = x.len().max(y.len());
    let dim = |dims: &Dims, i: usize| match (i + dims.len()).checked_sub(rank) {
        Some(i) => dims[i].get(),
        None => Some(1),
    };
    (0..rank)
        .map(|i| match (dim(x, i)?, dim(y, i)?) {
            (1, n) | (n, 1) => Some(n),
            (n, m) => (n == m).then_some(n),
        })
        .collect()
}

/// Broadcasts to a known shape.
pub(super) fn expand_to(x: &Expr, dims: &[usize]) -> Expr {
    if x.dims().known().is_some_and(|own| own.to_vec() == dims) {
        return x.clone();
    }
    let shape = dims.iter().map(|dim| i32::try_from(*dim).unwrap_or(i32::MAX)).collect();
    emit(ExpandV2 { x: x.into(), shape_input: None, expand_shapes_tensor: vec![], out: New, shape }).out
}

/// Reshapes to known dimensions; −1 is inferred.
pub(super) fn reshape(x: &Expr, dims: &[i64]) -> Expr {
    emit(Reshape2::of(x.into(), New, New, narrow(dims))).out
}

/// Permutes dimensions.
pub(super) fn permute(x: &Expr, axes: &[usize]) -> Expr {
    let axes: Vec<i32> = axes.iter().map(|axis| *axis as i32).collect();
    x.transpose(&axes)
}
