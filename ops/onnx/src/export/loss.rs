//! Gradients of cross entropies, and one-hot vectors.

use autobwd::{DType, Result, program::Var};
use autobwd_ops::loss::{CrossEntropyGrad, SoftmaxWithCrossEntropyGrad};

use super::{
    ExportOp, ExportRule,
    dims::OnnxDim,
    onnx_graph::{OnnxGraph, OnnxValue},
    rule,
};

pub(super) fn rules() -> Vec<(&'static str, ExportRule)> {
    vec![rule::<CrossEntropyGrad>(), rule::<SoftmaxWithCrossEntropyGrad>()]
}

/// Class indices of the lanes along an axis.
struct LabelValues {
    /// Indices, 1 in place of the classes; ignored ones are 0.
    index: OnnxValue,
    /// Where lanes are ignored.
    ignored: OnnxValue,
    axis: i64,
}

impl LabelValues {
    fn of(graph: &mut OnnxGraph<'_>, label: Var, of: Var, axis: i32, ignored: i32) -> Result<LabelValues> {
        let mut dims = graph.run_dims(of)?;
        let axis = graph.axis(of, axis)? as i64;
        dims[axis as usize] = OnnxDim::Known(1);
        let index = graph.read(label)?;
        let index = graph.reshape_to(index, &dims)?;
        let index = graph.cast(index, DType::I64);
        let [none, zero] = [graph.scalar(DType::I64, f64::from(ignored))?, graph.scalar(DType::I64, 0.0)?];
        let ignored = graph.op("Equal", &[index, none], &[]);
        let index = graph.op("Where", &[ignored, zero, index], &[]);
        Ok(LabelValues { index, ignored, axis })
    }
}

impl ExportOp for CrossEntropyGrad {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let (x, dy, dtype) = (graph.read(self.x)?, graph.read(self.dy)?, graph.dtype(self.x)?);
        let (zero, one) = (graph.scalar(dtype, 0.0)?, graph.scalar(dtype, 1.0)?);
        let weight = if self.soft_label {
            graph.read(self.label)?
        } else {
            let labels = LabelValues::of(graph, self.label, self.x, -1, self.ignore_index)?;
            let dims = graph.run_dims(self.x)?;
            let of = (dims[labels.axis as usize], labels.axis);
            let hot = one_hot(graph, labels.index, of, dims.len(), dtype)?;
            graph.op("Where", &[labels.ignored, zero, hot], &[])
        };
        // Probabilities without weight, perhaps 0, do not count.
        let is_zero = graph.op("Equal", &[weight, zero], &[]);
        let divisor = graph.op("Where", &[is_zero, one, x], &[]);
        let (ratio, dy) = (graph.div(weight, divisor), graph.op("Neg", &[dy], &[]));
        let dx = graph.mul(ratio, dy);
        graph.write(self.dx, dx);
        Ok(())
    }
}

impl ExportOp for SoftmaxWithCrossEntropyGrad {
    fn has_form(&self) -> bool {
        self.use_softmax
    }

    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let (softmax, dloss) = (graph.read(self.softmax)?, graph.read(self.dloss)?);
        let dtype = graph.dtype(self.dlogits)?;
        let dlogits = if self.soft_label {
            let label = graph.read(self.label)?;
            // Labels need not add up to 1.
            let sum = graph.reduce("ReduceSum", label, &[i64::from(self.axis)], true)?;
            let whole = graph.mul(softmax, sum);
            let difference = graph.sub(whole, label);
            graph.mul(difference, dloss)
        } else {
            let labels = LabelValues::of(graph, self.label, self.softmax, self.axis, self.ignore_index)?;
            let dims = graph.run_dims(self.softmax)?;
            let classes = dims[labels.axis as usize];
            let hot = one_hot(graph, labels.index, (classes, labels.axis), dims.len(), dtype)?;
            let difference = graph.sub(softmax, hot);
            let product = graph.mul(difference, dloss);
            let zero = graph.scalar(dtype, 0.0)?;
            graph.op("Where", &[labels.ignored, zero, product], &[])
        };
        graph.write(self.dlogits, dlogits);
        Ok(())
    }
}

/// 1 at the index along an axis, of size 1 in `index`, and 0 elsewhere; all 0 for an index that is not within `depth`.
fn one_hot(
    graph: &mut OnnxGraph<'_>,
    index: OnnxValue,
    (depth, axis): (OnnxDim, i64),
    rank: usize,
    dtype: DType,
) -> Result<OnnxValue> {
    let mut dims = vec![1; rank];
    dims[axis as usize] = -1;
    let classes = graph.range(depth)?;
    let classes = graph.reshape(classes, &dims)?;
    let index = graph.cast(index, DType::I64);
    let is = graph.op("Equal", &[index, classes], &[]);
    Ok(graph.cast(is, dtype))
}
