//! Adaptive pooling with windows of different sizes, or over images whose size is known when the model runs.

use autobwd::{DType, Error, ErrorKind, Result, program::Var};
use autobwd_ops::pool::{PoolAttrs, PoolingType};

use super::{
    conv::{Images, image_shape, write_images},
    dims::OnnxDim,
    linear::without_zeros,
    onnx_graph::{NodeAttr, OnnxGraph, OnnxValue},
};

/// Whether windows are all of one size, which is known.
pub(super) fn has_equal_windows(x: &[i64], out: &[i64]) -> bool {
    x.iter().zip(out).all(|(x, out)| *x >= 0 && *out > 0 && x % out == 0)
}

/// The windows along an axis: window `i` of `count` begins at `⌊i * n / count⌋` and ends ahead of
/// `⌈(i + 1) * n / count⌉`, for an axis of `n` elements.
struct AdaptiveAxis {
    count: i64,
    /// `[count, 1]` each.
    starts: OnnxValue,
    ends: OnnxValue,
    length: OnnxDim,
}

impl AdaptiveAxis {
    fn of(graph: &mut OnnxGraph<'_>, length: OnnxDim, count: i64) -> Result<AdaptiveAxis> {
        let indices = |graph: &mut OnnxGraph<'_>, offset: i64, rest: i64| {
            let numbers = graph.ints(&(offset..count + offset).collect::<Vec<_>>())?;
            let (rest, of_count) = (graph.ints(&[rest])?, graph.ints(&[count])?);
            let n = graph.shape_list(&[length])?;
            let product = graph.mul(numbers, n);
            let sum = graph.add(product, rest);
            let quotient = graph.div(sum, of_count);
            graph.unsqueeze(quotient, &[1])
        };
        let (starts, ends) = (indices(graph, 0, 0)?, indices(graph, 1, count - 1)?);
        Ok(AdaptiveAxis { count, starts, ends, length })
    }

    /// Weights of the means, `[count, length]`.
    fn weights(&self, graph: &mut OnnxGraph<'_>, dtype: DType) -> Result<OnnxValue> {
        let positions = graph.range(self.length)?;
        let before = graph.op("Less", &[positions, self.starts], &[]);
        let inside = graph.op("Less", &[positions, self.ends], &[]);
        let is_behind = graph.op("Not", &[before], &[]);
        let inside = graph.op("And", &[is_behind, inside], &[]);
        let (inside, sizes) = (graph.cast(inside, dtype), graph.sub(self.ends, self.starts));
        let sizes = graph.cast(sizes, dtype);
        Ok(graph.div(inside, sizes))
    }

    /// The maxima of the windows along an axis.
    fn maxima(&self, graph: &mut OnnxGraph<'_>, x: OnnxValue, axis: i64) -> Result<OnnxValue> {
        let axes = graph.ints(&[axis])?;
        let mut parts = vec![];
        for i in 0..self.count {
            let row = graph.ints(&[i])?;
            let [start, end] = [self.starts, self.ends].map(|all| graph.op("Gather", &[all, row], &[]));
            let (start, end) = (graph.reshape(start, &[1])?, graph.reshape(end, &[1])?);
            let window = graph.op("Slice", &[x, start, end, axes], &[]);
            parts.push(graph.reduce("ReduceMax", window, &[axis], true)?);
        }
        Ok(graph.op("Concat", &parts, &[("axis", NodeAttr::Int(axis))]))
    }
}

/// Both axes of images.
fn axes(graph: &mut OnnxGraph<'_>, x: &Images, out: [i64; 4]) -> Result<[AdaptiveAxis; 2]> {
    Ok([AdaptiveAxis::of(graph, x.dims[2], out[2])?, AdaptiveAxis::of(graph, x.dims[3], out[3])?])
}

/// The number of windows, which is known.
fn window_counts(graph: &OnnxGraph<'_>, pool: &PoolAttrs, out: Var) -> Result<[i64; 4]> {
    let shape = image_shape(graph, out, pool.data_format)?;
    if shape[2..].contains(&-1) { Err(graph.unknown_shape(out)) } else { Ok(shape) }
}

/// `out` = the means or maxima of the windows of `x`, by rows and then by columns.
pub(super) fn pool(graph: &mut OnnxGraph<'_>, pool: &PoolAttrs, [x, out]: [Var; 2]) -> Result<()> {
    let (counts, dtype) = (window_counts(graph, pool, out)?, graph.dtype(x)?);
    let x = Images::read(graph, x, pool.data_format)?;
    let [down, across] = axes(graph, &x, counts)?;
    let value = match pool.pooling_type {
        PoolingType::Max => {
            let rows = down.maxima(graph, x.value, 2)?;
            across.maxima(graph, rows, 3)?
        }
        PoolingType::Avg => {
            let (down, across) = (down.weights(graph, dtype)?, across.weights(graph, dtype)?);
            let across = graph.transposed(across, 2);
            product(graph, dtype, [down, x.value, across])?
        }
    };
    write_images(graph, out, value, pool.data_format);
    Ok(())
}

/// `dx` from `dout`, for means.
pub(super) fn pool_gradient(
    graph: &mut OnnxGraph<'_>,
    pool: &PoolAttrs,
    [x, dout, dx]: [Var; 3],
) -> Result<()> {
    if pool.pooling_type == PoolingType::Max {
        let text = "the gradient of adaptive maxima needs windows of one known size";
        return Err(Error::new(ErrorKind::Format, text));
    }
    let (counts, dtype) = (window_counts(graph, pool, dout)?, graph.dtype(x)?);
    let x = Images::read(graph, x, pool.data_format)?;
    let dout = Images::read(graph, dout, pool.data_format)?;
    let [down, across] = axes(graph, &x, counts)?;
    let (down, across) = (down.weights(graph, dtype)?, across.weights(graph, dtype)?);
    let down = graph.transposed(down, 2);
    let value = product(graph, dtype, [down, dout.value, across])?;
    write_images(graph, dx, value, pool.data_format);
    Ok(())
}

/// `down · x · across`, where weights of 0 do not count.
fn product(graph: &mut OnnxGraph<'_>, dtype: DType, [down, x, across]: [OnnxValue; 3]) -> Result<OnnxValue> {
    without_zeros(graph, x, dtype, |graph, x| {
        let rows = graph.op("MatMul", &[down, x], &[]);
        Ok(graph.op("MatMul", &[rows, across], &[]))
    })
}
