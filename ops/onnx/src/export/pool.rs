//! Pooling and its gradients.

use autobwd::{Error, ErrorKind, Result, Tensor, program::Var};
use autobwd_ops::{
    pool::{Pool2dGrad, Pool2dOp, PoolAttrs, PoolingType},
    windows::{PaddingAlgorithm, Windows},
};

use super::{
    Lower, LowerRule,
    conv::{Images, OnnxWindows, image_dims, read_images, write_images},
    onnx_graph::{NodeAttr, OnnxGraph, OnnxValue},
    rule,
};

pub(super) fn rules() -> Vec<(&'static str, LowerRule)> {
    vec![rule::<Pool2dOp>(), rule::<Pool2dGrad>()]
}

/// The windows of pooling over images of that size; adaptive pooling has such windows if they are equal.
fn windows(pool: &PoolAttrs, x: [i64; 4], out: [i64; 4]) -> Result<[Windows; 2]> {
    let mut windows = [pool.windows(0, x[2] as usize)?, pool.windows(1, x[3] as usize)?];
    if pool.adaptive {
        for (i, windows) in windows.iter_mut().enumerate() {
            let (size, count) = (x[2 + i], out[2 + i]);
            if count == 0 || size % count != 0 {
                let text = format!("adaptive pooling of {size} to {count} has windows of different sizes");
                return Err(Error::new(ErrorKind::Format, text));
            }
            let size = (size / count) as usize;
            *windows = Windows { size, stride: size, dilation: 1, before: 0, after: 0 };
        }
    }
    Ok(windows)
}

/// The number of elements whose mean each window gives, `[1, 1, rows, columns]`.
fn counts(pool: &PoolAttrs, windows: &[Windows; 2], x: [i64; 4], out: [i64; 4]) -> Result<Tensor> {
    let count = |i: usize, window: i64| {
        let (input, Windows { size, stride, before, .. }) = (x[2 + i] as usize, windows[i]);
        let start = window as usize * stride;
        let inside =
            (start + size).saturating_sub(before).min(input) - start.saturating_sub(before).min(input);
        let padded = size.min((input + 2 * before).saturating_sub(start)).max(1);
        if pool.exclusive || pool.adaptive { inside } else { padded }
    };
    let pairs = (0..out[2]).flat_map(|row| (0..out[3]).map(move |col| (row, col)));
    let counts = pairs.map(|(row, col)| (count(0, row) * count(1, col)) as f64);
    Tensor::from_vec([1, 1, out[2] as usize, out[3] as usize], counts.collect())
}

/// `MaxPool` with the positions of the maxima.
fn max_pool(
    graph: &mut OnnxGraph<'_>,
    pool: &PoolAttrs,
    x: OnnxValue,
    windows: &OnnxWindows,
) -> [OnnxValue; 2] {
    let mut attrs = windows.attrs();
    attrs.push(("ceil_mode", NodeAttr::Int(i64::from(pool.ceil_mode))));
    graph.nodes("MaxPool", &[Some(x)], &attrs)
}

impl Lower for Pool2dOp {
    fn lower(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let (pool, format) = (&self.pool, self.pool.data_format);
        if let Some(value) = simple(graph, pool, self.x)? {
            write_images(graph, self.out, value, format);
            return Ok(());
        }
        let out = image_dims(graph, self.out, format)?;
        let x = Images::read(graph, self.x, format)?;
        let geometry = windows(pool, x.dims, out)?;
        let attrs = OnnxWindows::of(geometry);
        let value = match pool.pooling_type {
            PoolingType::Max => max_pool(graph, pool, x.value, &attrs)[0],
            PoolingType::Avg => {
                // Sums by a convolution, since divisors at the borders follow other rules.
                let sums = sums(graph, self.x, &x, &attrs, out)?;
                let counts = counts(pool, &geometry, x.dims, out)?;
                let counts = as_dtype(graph, &counts, self.x)?;
                graph.op("Div", &[sums, counts], &[])
            }
        };
        write_images(graph, self.out, value, format);
        Ok(())
    }
}

/// Pooling that ONNX has, for images of any size.
fn simple(graph: &mut OnnxGraph<'_>, pool: &PoolAttrs, x: Var) -> Result<Option<OnnxValue>> {
    let symmetric = matches!(pool.paddings[..], [_, _]);
    let plain = pool.padding_algorithm == PaddingAlgorithm::Explicit && !pool.adaptive && !pool.ceil_mode;
    // One window, the whole image.
    let global = if pool.adaptive { pool.ksize.iter().all(|size| *size == 1) } else { pool.global_pooling };
    let op = match pool.pooling_type {
        _ if pool.adaptive && pool.global_pooling => return Ok(None),
        PoolingType::Max if global => "GlobalMaxPool",
        PoolingType::Avg if global => "GlobalAveragePool",
        PoolingType::Max if plain => "MaxPool",
        PoolingType::Avg if plain && (pool.exclusive || symmetric) => "AveragePool",
        _ => return Ok(None),
    };
    let x = read_images(graph, x, pool.data_format)?;
    if global {
        return Ok(Some(graph.op(op, &[x], &[])));
    }
    let windows = OnnxWindows::of([pool.windows(0, 0)?, pool.windows(1, 0)?]);
    let mut attrs = windows.attrs();
    if op == "AveragePool" {
        attrs.retain(|(name, _)| *name != "dilations");
        attrs.push(("count_include_pad", NodeAttr::Int(i64::from(!pool.exclusive))));
    }
    Ok(Some(graph.op(op, &[x], &attrs)))
}

/// A constant of float64 in the dtype of a variable.
fn as_dtype(graph: &mut OnnxGraph<'_>, tensor: &Tensor, like: Var) -> Result<OnnxValue> {
    let (value, dtype) = (graph.tensor(tensor), graph.dtype(like)?);
    Ok(graph.cast(value, dtype))
}

/// The sums of windows: a convolution with a filter of ones for each channel.
fn sums(
    graph: &mut OnnxGraph<'_>,
    like: Var,
    x: &Images,
    windows: &OnnxWindows,
    out: [i64; 4],
) -> Result<OnnxValue> {
    let filter = ones(graph, like, x.dims[1], windows)?;
    // A partial window at the end reaches beyond the padding.
    let end = |i: usize| {
        let reach = (out[2 + i] - 1) * windows.strides[i] + windows.kernel[i];
        (reach - x.dims[2 + i] - windows.pads[i]).max(0)
    };
    let pads = [windows.pads[0], windows.pads[1], end(0), end(1)];
    let windows = OnnxWindows { pads, ..*windows };
    let mut attrs = windows.attrs();
    attrs.push(("group", NodeAttr::Int(x.dims[1])));
    Ok(graph.op("Conv", &[x.value, filter], &attrs))
}

fn ones(graph: &mut OnnxGraph<'_>, like: Var, channels: i64, windows: &OnnxWindows) -> Result<OnnxValue> {
    let [height, width] = windows.kernel;
    graph.filled(graph.dtype(like)?, 1.0, &[channels, 1, height, width])
}

impl Lower for Pool2dGrad {
    fn lower(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let (pool, format) = (&self.pool, self.pool.data_format);
        let dout = Images::read(graph, self.dout, format)?;
        let x = Images::read(graph, self.x, format)?;
        let geometry = windows(pool, x.dims, dout.dims)?;
        let attrs = OnnxWindows::of(geometry);
        let value = match pool.pooling_type {
            PoolingType::Max => {
                let [_, at] = max_pool(graph, pool, x.value, &attrs);
                let zeros = graph.filled(graph.dtype(self.x)?, 0.0, &[x.dims.iter().product()])?;
                let at = graph.reshape(at, &[-1])?;
                let dout = graph.reshape(dout.value, &[-1])?;
                let reduction = [("reduction", NodeAttr::Text("add"))];
                let sums = graph.op("ScatterElements", &[zeros, at, dout], &reduction);
                graph.reshape(sums, &x.dims)?
            }
            PoolingType::Avg => {
                let counts = counts(pool, &geometry, x.dims, dout.dims)?;
                let counts = as_dtype(graph, &counts, self.x)?;
                let value = graph.op("Div", &[dout.value, counts], &[]);
                let filter = ones(graph, self.x, x.dims[1], &attrs)?;
                let [_, channels, height, width] = x.dims;
                let dout = Images { value, dims: dout.dims };
                attrs.transpose(graph, &dout, filter, [height, width], channels)?
            }
        };
        write_images(graph, self.dx, value, format);
        Ok(())
    }
}
