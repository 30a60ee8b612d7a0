//! Pooling and the gradient of maxima, where ONNX has nodes for the windows.

use autobwd::{Result, op::Rule};
use autobwd_ops::{
    pool::{Pool2dGrad, Pool2dOp, PoolAttrs, PoolingType},
    windows::PaddingAlgorithm,
};

use super::{
    NodeAttr, Onnx,
    conv::{OnnxWindows, SAME, channels_first, in_layout},
};
use crate::rules;

rules!(Pool2dGrad, Pool2dOp);

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

/// Calls `f` with the attributes of the node.
fn with_attrs<T>(pool: &PoolAttrs, node: &str, f: impl FnOnce(&[(&str, NodeAttr<'_>)]) -> T) -> Result<T> {
    if node.starts_with("Global") {
        return Ok(f(&[]));
    }
    let windows = OnnxWindows::of(&[pool.windows(0, 0)?, pool.windows(1, 0)?]);
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
impl Rule<Onnx> for Pool2dOp<Onnx> {
    fn fits(&self) -> bool {
        node(&self.pool).is_some()
    }

    fn apply(&mut self) {
        let Some(node) = node(&self.pool) else { return };
        let x = channels_first(&self.x, self.pool.data_format);
        match with_attrs(&self.pool, node, |attrs| x.node(node, &[], attrs)) {
            Ok(out) => self.out = in_layout(out, self.pool.data_format),
            Err(e) => self.x.fail(e.message()),
        }
    }
}

/// Maxima of explicit windows: `MaxPool` gives their positions.
impl Rule<Onnx> for Pool2dGrad<Onnx> {
    fn fits(&self) -> bool {
        node(&self.pool) == Some("MaxPool") && self.pool.padding_algorithm != PaddingAlgorithm::Same
    }

    fn apply(&mut self) {
        let format = self.pool.data_format;
        let x = channels_first(&self.x, format);
        let found = with_attrs(&self.pool, "MaxPool", |attrs| x.nodes("MaxPool", &[], attrs));
        let [_, at] = match found {
            Ok(found) => found,
            Err(e) => return self.x.fail(e.message()),
        };
        let shape = x.shape_of_value();
        let count = shape.node("ReduceProd", &[&shape.ints(&[0])], &[]);
        let [at, dout] =
            [at.typed(autobwd::DType::I64), channels_first(&self.dout, format)].map(|x| x.reshape(&[-1]));
        let zeros = dout.filled(0.0, &count);
        let sums = zeros.node("ScatterElements", &[&at, &dout], &[("reduction", NodeAttr::Text("add"))]);
        let sums = sums.node("Reshape", &[&shape], &[("allowzero", NodeAttr::Int(1))]);
        self.dx = in_layout(sums, format);
    }
}
