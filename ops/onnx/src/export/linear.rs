//! Linear maps with weights of 0, such as products with matrices of 0 and 1, that keep infinite elements where they are.

use autobwd::{DType, Result};

use super::onnx_graph::{OnnxGraph, OnnxValue};

/// `map(x)`, for a linear map whose weights are not negative, as if weights of 0 were absent: 0 times an infinite element
/// is NaN, which would spread to all results.
///
/// The map is applied to the finite elements, to their number and to the signs of the others: a result is infinite if all
/// infinite elements that it depends on have one sign, and else NaN.
pub(super) fn without_zeros(
    graph: &mut OnnxGraph<'_>,
    x: OnnxValue,
    dtype: DType,
    map: impl Fn(&mut OnnxGraph<'_>, OnnxValue) -> Result<OnnxValue>,
) -> Result<OnnxValue> {
    let [zero, infinite, negative, nan] = [0.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN];
    let [zero, infinite, negative, nan] = [
        graph.scalar(dtype, zero)?,
        graph.scalar(dtype, infinite)?,
        graph.scalar(dtype, negative)?,
        graph.scalar(dtype, nan)?,
    ];
    let size = graph.op("Abs", &[x], &[]);
    let is_finite = graph.op("Less", &[size, infinite], &[]);
    let finite = graph.op("Where", &[is_finite, x, zero], &[]);
    let is_other = graph.op("Not", &[is_finite], &[]);
    let others = graph.cast(is_other, dtype);
    let [above, below] = [infinite, negative].map(|number| {
        let is = graph.op("Equal", &[x, number], &[]);
        graph.cast(is, dtype)
    });
    let signs = graph.sub(above, below);
    let (finite, others, signs) = (map(graph, finite)?, map(graph, others)?, map(graph, signs)?);
    let is_positive = graph.op("Equal", &[signs, others], &[]);
    let opposite = graph.op("Neg", &[signs], &[]);
    let is_negative = graph.op("Equal", &[opposite, others], &[]);
    let unordered = graph.op("Where", &[is_negative, negative, nan], &[]);
    let unbounded = graph.op("Where", &[is_positive, infinite, unordered], &[]);
    let is_unbounded = graph.op("Greater", &[others, zero], &[]);
    Ok(graph.op("Where", &[is_unbounded, unbounded, finite], &[]))
}
