//! Slices, padding and their gradients.

use autobwd::{DType, Error, ErrorKind, Result, program::Var};
use autobwd_ops::shape::{Pad, Slice, SliceGrad, StridedSlice, StridedSliceGrad};

use super::{
    ExportOp, ExportRule,
    dims::OnnxDim,
    fill::shape_from,
    onnx_graph::{NodeAttr, OnnxGraph, OnnxValue},
    rule,
};

pub(super) fn rules() -> Vec<(&'static str, ExportRule)> {
    vec![
        rule::<Pad>(),
        rule::<Slice>(),
        rule::<SliceGrad>(),
        rule::<StridedSlice>(),
        rule::<StridedSliceGrad>(),
    ]
}

/// Integers that tensors hold, or else an attribute.
fn bounds(graph: &mut OnnxGraph<'_>, tensor: Option<Var>, list: &[Var], attr: &[i32]) -> Result<OnnxValue> {
    match shape_from(graph, tensor, list)? {
        Some(bounds) => Ok(bounds),
        None => graph.ints(&attr.iter().map(|bound| i64::from(*bound)).collect::<Vec<_>>()),
    }
}

/// Axes and starts of a slice.
macro_rules! slice_starts {
    ($graph:ident, $op:ident) => {{
        let axes = $graph.axes($op.input, &$op.axes)?;
        (axes, bounds($graph, $op.starts_tensor, &$op.starts_tensor_list, &$op.starts)?)
    }};
}

impl ExportOp for Slice {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let mut value = graph.read(self.input)?;
        if !self.axes.is_empty() {
            let (axes, starts) = slice_starts!(graph, self);
            let ends = bounds(graph, self.ends_tensor, &self.ends_tensor_list, &self.ends)?;
            let axes = graph.ints(&axes)?;
            value = graph.op("Slice", &[value, starts, ends, axes], &[]);
        }
        if !self.decrease_axis.is_empty() {
            let axes = graph.axes(self.input, &self.decrease_axis)?;
            value = graph.squeeze(value, &axes)?;
        }
        graph.write(self.out, value);
        Ok(())
    }
}
impl ExportOp for SliceGrad {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let mut value = graph.read(self.dout)?;
        if !self.decrease_axis.is_empty() {
            let mut axes = graph.axes(self.input, &self.decrease_axis)?;
            axes.sort_unstable();
            value = graph.unsqueeze(value, &axes)?;
        }
        if !self.axes.is_empty() {
            let (axes, starts) = slice_starts!(graph, self);
            let is_attribute = self.starts_tensor.is_none() && self.starts_tensor_list.is_empty();
            let known = is_attribute.then_some(&self.starts[..]);
            value = pad_back(graph, value, self.input, &axes, (starts, known))?;
        }
        graph.write(self.dinput, value);
        Ok(())
    }
}

/// A slice that began at `starts`, which may be known, with zeros around it in the shape of `input`.
fn pad_back(
    graph: &mut OnnxGraph<'_>,
    part: OnnxValue,
    input: Var,
    axes: &[i64],
    (starts, known): (OnnxValue, Option<&[i32]>),
) -> Result<OnnxValue> {
    let dims = graph.run_dims(input)?;
    let lengths: Vec<OnnxDim> = axes.iter().map(|axis| dims[*axis as usize]).collect();
    let of_part = |axis: &i64| OnnxDim::Of(part, *axis as usize, *axis as usize + 1);
    let parts: Vec<OnnxDim> = axes.iter().map(of_part).collect();
    let (lengths, parts) = (graph.shape_list(&lengths)?, graph.shape_list(&parts)?);
    let zero = graph.scalar(DType::I64, 0.0)?;
    let mut before = starts;
    if known.is_none_or(|starts| starts.iter().any(|start| *start < 0)) {
        // A start below 0 counts from the end.
        let (is_below, from_end) = (graph.op("Less", &[starts, zero], &[]), graph.add(starts, lengths));
        before = graph.op("Where", &[is_below, from_end, starts], &[]);
        before = graph.op("Max", &[before, zero], &[]);
    }
    before = graph.op("Min", &[before, lengths], &[]);
    let after = graph.sub(lengths, before);
    let after = graph.sub(after, parts);
    let pads = graph.op("Concat", &[before, after], &[("axis", NodeAttr::Int(0))]);
    let axes = graph.ints(axes)?;
    let [value] = graph.nodes("Pad", &[Some(part), Some(pads), None, Some(axes)], &[]);
    Ok(value)
}

impl ExportOp for Pad {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let mut value = graph.read(self.x)?;
        // ONNX Runtime pads no scalars.
        if !self.paddings.is_empty() {
            // Paddings before all dimensions, then after them.
            let of = |at: usize| self.paddings.iter().skip(at).step_by(2).map(|padding| i64::from(*padding));
            let pads = graph.ints(&of(0).chain(of(1)).collect::<Vec<_>>())?;
            let element = graph.scalar(graph.dtype(self.x)?, f64::from(self.pad_value))?;
            value = graph.op("Pad", &[value, pads, element], &[]);
        }
        graph.write(self.out, value);
        Ok(())
    }
}

/// The elements of `$value` that a slice with steps takes.
macro_rules! strided {
    ($graph:ident, $op:ident, $value:expr) => {{
        let from_tensor = $op.strides_tensor.is_some() || !$op.strides_tensor_list.is_empty();
        let of_tensor = $op.ends_tensor.is_some() || !$op.ends_tensor_list.is_empty();
        if from_tensor || (of_tensor && $op.strides.iter().any(|step| *step < 0)) {
            let text = "steps from tensors, and ends of steps back, have no form in ONNX";
            return Err(Error::new(ErrorKind::Format, text));
        }
        let (axes, starts) = slice_starts!($graph, $op);
        // With a negative step, −1 is the place before the first element.
        let end = |(end, step): (&i32, &i32)| match (*end, *step) {
            (-1, ..0) => i64::MIN,
            (end, _) => i64::from(end),
        };
        let ends = match of_tensor {
            true => bounds($graph, $op.ends_tensor, &$op.ends_tensor_list, &[])?,
            false => $graph.ints(&$op.ends.iter().zip(&$op.strides).map(end).collect::<Vec<_>>())?,
        };
        let steps: Vec<i64> = $op.strides.iter().map(|step| i64::from(*step)).collect();
        let (axes, steps) = ($graph.ints(&axes)?, $graph.ints(&steps)?);
        $graph.op("Slice", &[$value, starts, ends, axes, steps], &[])
    }};
}

impl ExportOp for StridedSlice {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let value = graph.read(self.input)?;
        let mut value = strided!(graph, self, value);
        if !self.decrease_axis.is_empty() {
            let axes = graph.axes(self.input, &self.decrease_axis)?;
            value = graph.squeeze(value, &axes)?;
        }
        graph.write(self.out, value);
        Ok(())
    }
}
impl ExportOp for StridedSliceGrad {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let (dims, rank) = (graph.run_dims(self.input)?, graph.rank(self.input)?);
        // The positions of the slice's elements among all.
        let count = graph.merged_dims(self.input, 0, rank)?;
        let positions = graph.range(count)?;
        let positions = graph.reshape_to(positions, &dims)?;
        let positions = strided!(graph, self, positions);
        let positions = graph.reshape(positions, &[-1])?;
        let zeros = graph.filled_to(graph.dtype(self.dout)?, 0.0, &[count])?;
        let dout = graph.read(self.dout)?;
        let dout = graph.reshape(dout, &[-1])?;
        let value = graph.op("ScatterElements", &[zeros, positions, dout], &[]);
        let value = graph.reshape_to(value, &dims)?;
        graph.write(self.dinput, value);
        Ok(())
    }
}
