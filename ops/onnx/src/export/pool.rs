//! Pooling and its gradients.

use autobwd::{Result, Tensor, program::Var};
use autobwd_ops::{
    pool::{Pool2dGrad, Pool2dOp, PoolAttrs, PoolingType},
    windows::{PaddingAlgorithm, Windows},
};

use super::{
    ExportOp, ExportRule, adaptive,
    conv::{Images, OnnxWindows, image_dims, image_shape, read_images, write_images},
    dims::OnnxDim,
    onnx_graph::{NodeAttr, OnnxGraph, OnnxValue},
    rule,
    same::{SAME, SamePadding},
};

pub(super) fn rules() -> Vec<(&'static str, ExportRule)> {
    vec![rule::<Pool2dOp>(), rule::<Pool2dGrad>()]
}

/// The windows of pooling over images of that size; adaptive pooling has such windows if they are equal.
fn windows(pool: &PoolAttrs, x: [i64; 4], out: [i64; 4]) -> Result<[Windows; 2]> {
    let mut windows = [pool.windows(0, x[2] as usize)?, pool.windows(1, x[3] as usize)?];
    if pool.adaptive {
        for (i, windows) in windows.iter_mut().enumerate() {
            let size = x[2 + i].checked_div(out[2 + i]).unwrap_or_default() as usize;
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

impl ExportOp for Pool2dOp {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let (pool, format) = (&self.pool, self.pool.data_format);
        if let Some(value) = simple(graph, pool, self.x)? {
            write_images(graph, self.out, value, format);
            return Ok(());
        }
        let (of_x, of_out) = (image_shape(graph, self.x, format)?, image_shape(graph, self.out, format)?);
        if pool.adaptive && !adaptive::has_equal_windows(&of_x[2..], &of_out[2..]) {
            return adaptive::pool(graph, pool, [self.x, self.out]);
        }
        let (out, dims) = (image_dims(graph, self.out, format)?, image_dims(graph, self.x, format)?);
        let x = read_images(graph, self.x, format)?;
        let geometry = windows(pool, dims, out)?;
        let attrs = OnnxWindows::of(geometry);
        let value = match pool.pooling_type {
            PoolingType::Max => max_pool(graph, pool, x, &attrs)[0],
            PoolingType::Avg => {
                // Sums by a convolution, since divisors at the borders follow other rules.
                let sums = sums(graph, self.x, (x, dims), &attrs, out)?;
                let counts = counts(pool, &geometry, dims, out)?;
                let counts = as_dtype(graph, &counts, self.x)?;
                graph.op("Div", &[sums, counts], &[])
            }
        };
        write_images(graph, self.out, value, format);
        Ok(())
    }
}

/// Whether there is one window, the whole image.
fn is_global(pool: &PoolAttrs) -> bool {
    match (pool.adaptive, pool.global_pooling) {
        (true, is_global) => !is_global && pool.ksize.iter().all(|size| *size == 1),
        (false, is_global) => is_global,
    }
}

/// Pooling that ONNX has, for images of any size.
fn simple(graph: &mut OnnxGraph<'_>, pool: &PoolAttrs, var: Var) -> Result<Option<OnnxValue>> {
    let symmetric = matches!(pool.paddings[..], [_, _]);
    let explicit = pool.padding_algorithm != PaddingAlgorithm::Same && !pool.ceil_mode;
    let is_open = image_shape(graph, var, pool.data_format)?[2..].contains(&-1);
    let plain = !pool.adaptive && (explicit || is_open);
    let global = is_global(pool);
    let op = match pool.pooling_type {
        _ if pool.adaptive && pool.global_pooling => return Ok(None),
        PoolingType::Max if global => "GlobalMaxPool",
        PoolingType::Avg if global => "GlobalAveragePool",
        PoolingType::Max if plain => "MaxPool",
        PoolingType::Avg if plain && (pool.exclusive || (symmetric && explicit)) => "AveragePool",
        _ => return Ok(None),
    };
    let x = read_images(graph, var, pool.data_format)?;
    if global {
        return Ok(Some(graph.op(op, &[x], &[])));
    }
    let mut windows = OnnxWindows::of([pool.windows(0, 0)?, pool.windows(1, 0)?]);
    let is_same = pool.padding_algorithm == PaddingAlgorithm::Same;
    if is_same && windows.kernel.iter().zip(&windows.strides).any(|(size, stride)| size < stride) {
        // ONNX Runtime would take elements away.
        windows.pads = [0; 4];
        return padded(graph, pool, var, &windows).map(Some);
    }
    let mut attrs = windows.attrs();
    if op == "AveragePool" {
        attrs.retain(|(name, _)| *name != "dilations");
        attrs.push(("count_include_pad", NodeAttr::Int(i64::from(!pool.exclusive))));
    }
    if is_same {
        attrs.retain(|(name, _)| *name != "pads");
        attrs.push(SAME);
    } else if pool.ceil_mode {
        attrs.push(("ceil_mode", NodeAttr::Int(1)));
    }
    Ok(Some(graph.op(op, &[x], &attrs)))
}

/// Pooling of images that are padded first, such that there are windows for all elements.
fn padded(graph: &mut OnnxGraph<'_>, pool: &PoolAttrs, var: Var, windows: &OnnxWindows) -> Result<OnnxValue> {
    let x = Images::read(graph, var, pool.data_format)?;
    let (same, is_max) =
        (SamePadding::of(graph, &x.dims[2..], windows)?, pool.pooling_type == PoolingType::Max);
    let element = graph.scalar(graph.dtype(var)?, if is_max { f64::NEG_INFINITY } else { 0.0 })?;
    let value = same.add(graph, x.value, element)?;
    if is_max {
        return Ok(max_pool(graph, pool, value, windows)[0]);
    }
    let mut attrs = windows.attrs();
    attrs.retain(|(name, _)| *name != "dilations");
    let means = graph.op("AveragePool", &[value], &attrs);
    let whole = graph.scalar(graph.dtype(var)?, windows.kernel.iter().product::<i64>() as f64)?;
    let (sums, counts) = (graph.mul(means, whole), counts_of(graph, pool, var, &x, windows, Some(&same))?);
    Ok(graph.div(sums, counts))
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
    (x, dims): (OnnxValue, [i64; 4]),
    windows: &OnnxWindows,
    out: [i64; 4],
) -> Result<OnnxValue> {
    let filter = ones(graph, like, dims[1], windows)?;
    // A partial window at the end reaches beyond the padding.
    let end = |i: usize| {
        let reach = (out[2 + i] - 1) * windows.strides[i] + windows.kernel[i];
        (reach - dims[2 + i] - windows.pads[i]).max(0)
    };
    let pads = [windows.pads[0], windows.pads[1], end(0), end(1)];
    let windows = OnnxWindows { pads, ..*windows };
    let mut attrs = windows.attrs();
    attrs.push(("group", NodeAttr::Int(dims[1])));
    Ok(graph.op("Conv", &[x, filter], &attrs))
}

fn ones(graph: &mut OnnxGraph<'_>, like: Var, channels: i64, windows: &OnnxWindows) -> Result<OnnxValue> {
    let [height, width] = windows.kernel;
    graph.filled(graph.dtype(like)?, 1.0, &[channels, 1, height, width])
}

impl ExportOp for Pool2dGrad {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let (pool, format) = (&self.pool, self.pool.data_format);
        let (of_x, of_out) = (image_shape(graph, self.x, format)?, image_shape(graph, self.dout, format)?);
        if is_global(pool) {
            return global_gradient(graph, pool, [self.x, self.dout, self.dx]);
        }
        if pool.adaptive && !adaptive::has_equal_windows(&of_x[2..], &of_out[2..]) {
            return adaptive::pool_gradient(graph, pool, [self.x, self.dout, self.dx]);
        }
        let dout = Images::read(graph, self.dout, format)?;
        let x = Images::read(graph, self.x, format)?;
        let sizes = [of_x, of_out].concat();
        let known = sizes.iter().enumerate().all(|(i, dim)| i % 4 < 2 || *dim >= 0);
        let geometry = windows(pool, of_x.map(|dim| dim.max(0)), of_out)?;
        let mut attrs = OnnxWindows::of(geometry);
        let mut same = None;
        if !known && pool.padding_algorithm == PaddingAlgorithm::Same {
            attrs.pads = [0; 4];
            same = Some(SamePadding::of(graph, &x.dims[2..], &attrs)?);
        }
        let value = match pool.pooling_type {
            PoolingType::Max => {
                let mut padded = Images { ..x };
                if let Some(same) = &same {
                    let least = graph.scalar(graph.dtype(self.x)?, f64::NEG_INFINITY)?;
                    padded.value = same.add(graph, x.value, least)?;
                    for axis in [2, 3] {
                        padded.dims[axis] = OnnxDim::Of(padded.value, axis, axis + 1);
                    }
                }
                let [_, at] = max_pool(graph, pool, padded.value, &attrs);
                let count = match graph.dims(self.x) {
                    Ok(dims) if same.is_none() => OnnxDim::Known(dims.iter().product()),
                    _ => OnnxDim::Of(padded.value, 0, 4),
                };
                let zeros = graph.filled_to(graph.dtype(self.x)?, 0.0, &[count])?;
                let at = graph.reshape(at, &[-1])?;
                let dout = graph.reshape(dout.value, &[-1])?;
                let reduction = [("reduction", NodeAttr::Text("add"))];
                let sums = graph.op("ScatterElements", &[zeros, at, dout], &reduction);
                let sums = graph.reshape_to(sums, &padded.dims)?;
                same.map_or(Ok(sums), |same| same.remove(graph, sums, &x.dims[2..]))?
            }
            PoolingType::Avg => {
                let counts = match known {
                    true => {
                        let counts = counts(pool, &geometry, of_x, of_out)?;
                        as_dtype(graph, &counts, self.x)?
                    }
                    false => counts_of(graph, pool, self.x, &x, &attrs, same.as_ref())?,
                };
                let value = graph.op("Div", &[dout.value, counts], &[]);
                let [_, channels, ..] = of_x;
                if channels < 0 {
                    return Err(graph.unknown_shape(self.x));
                }
                let filter = ones(graph, self.x, channels, &attrs)?;
                match same {
                    Some(same) => {
                        let added = attrs.strides.map(|stride| stride - 1);
                        let sums = attrs.transpose_with(graph, [value, filter], &added, channels);
                        same.remove(graph, sums, &x.dims[2..])?
                    }
                    None => {
                        let dout = Images { value, dims: dout.dims };
                        attrs.transpose(graph, &dout, filter, [x.dims[2], x.dims[3]], channels)?
                    }
                }
            }
        };
        write_images(graph, self.dx, value, format);
        Ok(())
    }
}

/// The gradient for one window, the whole image.
fn global_gradient(graph: &mut OnnxGraph<'_>, pool: &PoolAttrs, [x, dout, dx]: [Var; 3]) -> Result<()> {
    let (format, dtype) = (pool.data_format, graph.dtype(x)?);
    let (dout, x) = (Images::read(graph, dout, format)?, Images::read(graph, x, format)?);
    let value = match pool.pooling_type {
        PoolingType::Avg => {
            let count = graph.count(&x.dims[2..], dtype)?;
            let mean = graph.div(dout.value, count);
            graph.expand_to(mean, &x.dims)?
        }
        PoolingType::Max => {
            let pixels = match (x.dims[2], x.dims[3]) {
                (OnnxDim::Known(height), OnnxDim::Known(width)) => OnnxDim::Known(height * width),
                _ => OnnxDim::Of(x.value, 2, 4),
            };
            let planes = [x.dims[0], x.dims[1], pixels];
            let pixels = graph.reshape_to(x.value, &planes)?;
            let axis = ("axis", NodeAttr::Int(2));
            let at = graph.op("ArgMax", &[pixels], &[axis]);
            let zeros = graph.filled_to(dtype, 0.0, &planes)?;
            let dout = graph.squeeze(dout.value, &[3])?;
            let sums = graph.op("ScatterElements", &[zeros, at, dout], &[("axis", NodeAttr::Int(2))]);
            graph.reshape_to(sums, &x.dims)?
        }
    };
    write_images(graph, dx, value, format);
    Ok(())
}

/// The number of elements whose mean each window gives, for images of any size.
fn counts_of(
    graph: &mut OnnxGraph<'_>,
    pool: &PoolAttrs,
    like: Var,
    x: &Images,
    windows: &OnnxWindows,
    same: Option<&SamePadding>,
) -> Result<OnnxValue> {
    let dtype = graph.dtype(like)?;
    if same.is_none() && !pool.ceil_mode {
        let whole = graph.scalar(dtype, windows.kernel.iter().product::<i64>() as f64)?;
        if windows.pads == [0; 4] || (!pool.exclusive && matches!(pool.paddings[..], [_, _])) {
            return Ok(whole);
        }
    }
    if !pool.exclusive {
        return Err(graph.unknown_shape(like));
    }
    let one = OnnxDim::Known(1);
    let mut inside = graph.filled_to(dtype, 1.0, &[one, one, x.dims[2], x.dims[3]])?;
    if let Some(same) = same {
        let zero = graph.scalar(dtype, 0.0)?;
        inside = same.add(graph, inside, zero)?;
    }
    let mut windows = *windows;
    if pool.ceil_mode && same.is_none() {
        // A partial window at the end reaches beyond the padding.
        for i in 0..2 {
            windows.pads[2 + i] += windows.strides[i] - 1;
        }
    }
    let filter = ones(graph, like, 1, &windows)?;
    Ok(graph.op("Conv", &[inside, filter], &windows.attrs()))
}
