//! Pooling and the gradient of maxima, where ONNX has nodes for the windows.

use autobwd::{__private::internals::*, Error, Result};
use autobwd_ops::{
    pool::{Pool2dGrad, Pool2dOp, PoolAttrs, PoolingType},
    windows::PaddingAlgorithm,
};

use super::{
    ExportOp, ExportRule,
    conv::{Images, OnnxWindows, SAME, read_images, write_images},
    dims::OnnxDim,
    onnx_graph::{NodeAttr, OnnxGraph},
    rule,
};

pub(super) fn rules() -> Vec<(&'static str, ExportRule)> {
    vec![rule::<Pool2dOp>(), rule::<Pool2dGrad>()]
}

/// The node for pooling with these attributes, over images of any size.
fn node(pool: &PoolAttrs) -> Option<&'static str> {
    let is_same = pool.padding_algorithm == PaddingAlgorithm::Same;
    let is_longer = |(stride, size): (&i32, &i32)| stride > size;
    // ONNX pads as much after the elements as before, and partial windows have no padding to count.
    let counts_padding = matches!(pool.paddings[..], [_, _])
        && pool.paddings.iter().zip(&pool.ksize).all(|(padding, size)| padding < size)
        && !is_same
        && !pool.ceil_mode;
    match (pool.adaptive, pool.global_pooling, pool.pooling_type) {
        (true, true, _) => None,
        (false, true, PoolingType::Max) => Some("GlobalMaxPool"),
        (false, true, PoolingType::Avg) => Some("GlobalAveragePool"),
        (true, _, PoolingType::Max) if pool.ksize == [1, 1] => Some("GlobalMaxPool"),
        (true, _, PoolingType::Avg) if pool.ksize == [1, 1] => Some("GlobalAveragePool"),
        (true, ..) => None,
        // ONNX Runtime would take elements away.
        _ if is_same && pool.strides.iter().zip(&pool.ksize).any(is_longer) => None,
        (.., PoolingType::Max) => Some("MaxPool"),
        (.., PoolingType::Avg) => (pool.exclusive || counts_padding).then_some("AveragePool"),
    }
}

/// The attributes of the node.
fn with_attrs<T>(pool: &PoolAttrs, node: &str, f: impl FnOnce(&[(&str, NodeAttr<'_>)]) -> T) -> Result<T> {
    if node.starts_with("Global") {
        return Ok(f(&[]));
    }
    let windows = OnnxWindows::of([pool.windows(0, 0)?, pool.windows(1, 0)?]);
    let mut attrs = windows.attrs();
    if node == "AveragePool" {
        attrs.retain(|(name, _)| *name != "dilations");
        attrs.push(("count_include_pad", NodeAttr::Int(i64::from(!pool.exclusive))));
    }
    if pool.padding_algorithm == PaddingAlgorithm::Same {
        attrs.retain(|(name, _)| *name != "pads");
        attrs.push(SAME);
    } else {
        attrs.push(("ceil_mode", NodeAttr::Int(i64::from(pool.ceil_mode))));
    }
    Ok(f(&attrs))
}

// Native: padded windows as a composition take 2.6 times as long in ONNX Runtime.
impl ExportOp for Pool2dOp {
    fn has_form(&self) -> bool {
        node(&self.pool).is_some()
    }

    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let pool = &self.pool;
        let node = node(pool).ok_or_else(|| Error::internal("pooling without a node"))?;
        let x = read_images(graph, self.x, pool.data_format)?;
        let value = with_attrs(pool, node, |attrs| graph.op(node, &[x], attrs))?;
        write_images(graph, self.out, value, pool.data_format);
        Ok(())
    }
}

/// Maxima of explicit windows: `MaxPool` gives their positions.
impl ExportOp for Pool2dGrad {
    fn has_form(&self) -> bool {
        node(&self.pool) == Some("MaxPool") && self.pool.padding_algorithm != PaddingAlgorithm::Same
    }

    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let format = self.pool.data_format;
        let x = Images::read(graph, self.x, format)?;
        let [_, at] =
            with_attrs(&self.pool, "MaxPool", |attrs| graph.nodes("MaxPool", &[Some(x.value)], attrs))?;
        let count = match graph.dims(self.x) {
            Ok(dims) => OnnxDim::Known(dims.iter().product()),
            Err(_) => OnnxDim::Of(x.value, 0, 4),
        };
        let zeros = graph.filled_to(graph.dtype(self.x)?, 0.0, &[count])?;
        let dout = read_images(graph, self.dout, format)?;
        let [at, dout] = [graph.reshape(at, &[-1])?, graph.reshape(dout, &[-1])?];
        let reduction = [("reduction", NodeAttr::Text("add"))];
        let sums = graph.op("ScatterElements", &[zeros, at, dout], &reduction);
        let sums = graph.reshape_to(sums, &x.dims)?;
        write_images(graph, self.dx, sums, format);
        Ok(())
    }
}
