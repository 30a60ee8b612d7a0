//! Reductions, sums and softmax.

use autobwd::{Result, program::Var};
use autobwd_ops::{
    reduce::{ReduceAmax, ReduceAmin, ReduceAttrs, ReduceMax, ReduceMean, ReduceMin, ReduceProd, ReduceSum},
    softmax::{LogSoftmax, Softmax},
};

use super::{
    ExportOp, ExportRule,
    onnx_graph::{NodeAttr, OnnxGraph},
    rule,
};

pub(super) fn rules() -> Vec<(&'static str, ExportRule)> {
    vec![
        rule::<LogSoftmax>(),
        rule::<ReduceAmax>(),
        rule::<ReduceAmin>(),
        rule::<ReduceMax>(),
        rule::<ReduceMean>(),
        rule::<ReduceMin>(),
        rule::<ReduceProd>(),
        rule::<ReduceSum>(),
        rule::<Softmax>(),
    ]
}

/// The reduced dimensions of a tensor.
fn axes(graph: &OnnxGraph<'_>, x: Var, reduce: &ReduceAttrs) -> Result<Vec<i64>> {
    let rank = graph.rank(x)? as i64;
    if reduce.reduce_all || reduce.dim.is_empty() {
        return Ok((0..rank).collect());
    }
    let from_start = |dim: &i32| i64::from(*dim) + if *dim < 0 { rank } else { 0 };
    // A scalar accepts an axis, too.
    Ok(reduce.dim.iter().map(from_start).filter(|dim| (0..rank).contains(dim)).collect())
}

/// `out` = the reduction of `x` by that operator of ONNX.
fn reduce_by(graph: &mut OnnxGraph<'_>, op: &str, [x, out]: [Var; 2], reduce: &ReduceAttrs) -> Result<()> {
    let axes = axes(graph, x, reduce)?;
    let (mut value, dtype) = (graph.read(x)?, graph.dtype(out)?);
    if graph.dtype(x)? != dtype {
        value = graph.cast(value, dtype);
    }
    let value = graph.reduce(op, value, &axes, reduce.keep_dim)?;
    graph.write(out, value);
    Ok(())
}

macro_rules! reductions {
    ($($op:ident $onnx:literal),*) => {$(
        impl ExportOp for $op {
            fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
                reduce_by(graph, $onnx, [self.x, self.out], &self.reduce)
            }
        }
    )*};
}
reductions!(
    ReduceAmax "ReduceMax", ReduceAmin "ReduceMin", ReduceMax "ReduceMax", ReduceMean "ReduceMean", ReduceMin "ReduceMin", ReduceProd "ReduceProd",
    ReduceSum "ReduceSum"
);

impl ExportOp for Softmax {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        normalise(graph, "Softmax", [self.x, self.out], i64::from(self.axis))
    }
}
impl ExportOp for LogSoftmax {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        normalise(graph, "LogSoftmax", [self.x, self.out], i64::from(self.axis))
    }
}

fn normalise(graph: &mut OnnxGraph<'_>, op: &str, [x, out]: [Var; 2], axis: i64) -> Result<()> {
    let (mut value, scalar) = (graph.read(x)?, graph.rank(x)? == 0);
    if scalar {
        value = graph.reshape(value, &[1])?;
    }
    let axis = if scalar { 0 } else { axis };
    let mut result = graph.op(op, &[value], &[("axis", NodeAttr::Int(axis))]);
    if scalar {
        result = graph.reshape(result, &[])?;
    }
    graph.write(out, result);
    Ok(())
}
