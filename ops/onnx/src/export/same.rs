//! Padding `SAME` of images whose size is known when the model runs.

use autobwd::{DType, Result};

use super::{
    conv::OnnxWindows,
    dims::OnnxDim,
    onnx_graph::{NodeAttr, OnnxGraph, OnnxValue},
};

/// The attribute of nodes that pad images so.
pub(super) const SAME: (&str, NodeAttr<'_>) = ("auto_pad", NodeAttr::Text("SAME_UPPER"));

/// Rows and columns of padding.
pub(super) struct SamePadding {
    /// Above and to the left.
    before: OnnxValue,
    /// Below and to the right.
    after: OnnxValue,
}

impl SamePadding {
    /// As many windows as the size divided by the stride, rounded up.
    pub(super) fn of(
        graph: &mut OnnxGraph<'_>,
        size: &[OnnxDim],
        windows: &OnnxWindows,
    ) -> Result<SamePadding> {
        let [one, two] = [graph.scalar(DType::I64, 1.0)?, graph.scalar(DType::I64, 2.0)?];
        let zero = graph.scalar(DType::I64, 0.0)?;
        let (size, strides) = (graph.shape_list(size)?, graph.ints(&windows.strides)?);
        let kernel = graph.ints(&windows.kernel)?;
        let last = graph.sub(size, one);
        let last = graph.div(last, strides);
        let last = graph.mul(last, strides);
        let reach = graph.add(last, kernel);
        let missing = graph.sub(reach, size);
        let sum = graph.op("Max", &[missing, zero], &[]);
        let before = graph.div(sum, two);
        Ok(SamePadding { before, after: graph.sub(sum, before) })
    }

    /// Images with padding, by an element.
    pub(super) fn add(
        &self,
        graph: &mut OnnxGraph<'_>,
        x: OnnxValue,
        element: OnnxValue,
    ) -> Result<OnnxValue> {
        let pads = graph.op("Concat", &[self.before, self.after], &[("axis", NodeAttr::Int(0))]);
        let axes = graph.ints(&[2, 3])?;
        Ok(graph.op("Pad", &[x, pads, element, axes], &[]))
    }

    /// Images of that size, without the padding.
    pub(super) fn remove(
        &self,
        graph: &mut OnnxGraph<'_>,
        x: OnnxValue,
        size: &[OnnxDim],
    ) -> Result<OnnxValue> {
        let (size, axes) = (graph.shape_list(size)?, graph.ints(&[2, 3])?);
        let ends = graph.add(self.before, size);
        Ok(graph.op("Slice", &[x, self.before, ends, axes], &[]))
    }
}
