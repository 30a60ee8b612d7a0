//! Slices, padding and their gradients.

use autobwd::{DType, Result, program::Var};
use autobwd_ops::shape::{Flip, Pad, PadGrad, Slice, SliceGrad};

use super::{
    Lower, LowerRule,
    dims::OnnxDim,
    fill::shape_from,
    onnx_graph::{NodeAttr, OnnxGraph, OnnxValue},
    rule,
};

pub(super) fn rules() -> Vec<(&'static str, LowerRule)> {
    vec![rule::<Flip>(), rule::<Pad>(), rule::<PadGrad>(), rule::<Slice>(), rule::<SliceGrad>()]
}

/// Integers that tensors hold, or else an attribute.
fn bounds(graph: &mut OnnxGraph<'_>, tensor: Option<Var>, list: &[Var], attr: &[i32]) -> Result<OnnxValue> {
    match shape_from(graph, tensor, list)? {
        Some(bounds) => Ok(bounds),
        None => graph.ints(&attr.iter().map(|bound| i64::from(*bound)).collect::<Vec<_>>()),
    }
}

/// Starts, ends and axes of a slice.
macro_rules! slice_bounds {
    ($graph:ident, $op:ident) => {{
        let axes = $graph.axes($op.input, &$op.axes)?;
        let starts = bounds($graph, $op.starts_tensor, &$op.starts_tensor_list, &$op.starts)?;
        (axes, starts, bounds($graph, $op.ends_tensor, &$op.ends_tensor_list, &$op.ends)?)
    }};
}

impl Lower for Slice {
    fn lower(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let mut value = graph.read(self.input)?;
        if !self.axes.is_empty() {
            let (axes, starts, ends) = slice_bounds!(graph, self);
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
impl Lower for SliceGrad {
    fn lower(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let mut value = graph.read(self.dout)?;
        if !self.decrease_axis.is_empty() {
            let mut axes = graph.axes(self.input, &self.decrease_axis)?;
            axes.sort_unstable();
            value = graph.unsqueeze(value, &axes)?;
        }
        if !self.axes.is_empty() {
            let (axes, starts, _) = slice_bounds!(graph, self);
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

impl Lower for Pad {
    fn lower(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let pads = pads(&self.paddings, 1);
        let (x, pads) = (graph.read(self.x)?, graph.ints(&pads)?);
        let value = graph.scalar(graph.dtype(self.x)?, f64::from(self.pad_value))?;
        let value = graph.op("Pad", &[x, pads, value], &[]);
        graph.write(self.out, value);
        Ok(())
    }
}
impl Lower for PadGrad {
    fn lower(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        // Negative padding removes elements.
        let pads = pads(&self.paddings, -1);
        let (dout, pads) = (graph.read(self.dout)?, graph.ints(&pads)?);
        let value = graph.op("Pad", &[dout, pads], &[]);
        graph.write(self.dx, value);
        Ok(())
    }
}

/// Paddings before all dimensions, then after them, from pairs.
fn pads(pairs: &[i32], sign: i64) -> Vec<i64> {
    let of = |at: usize| pairs.iter().skip(at).step_by(2).map(move |padding| sign * i64::from(*padding));
    of(0).chain(of(1)).collect()
}

impl Lower for Flip {
    fn lower(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let (x, axes, n) = (graph.read(self.x)?, graph.axes(self.x, &self.axis)?, self.axis.len());
        let starts = graph.ints(&vec![-1; n])?;
        let ends = graph.ints(&vec![i64::MIN; n])?;
        let (axes, steps) = (graph.ints(&axes)?, graph.ints(&vec![-1; n])?);
        let value = graph.op("Slice", &[x, starts, ends, axes, steps], &[]);
        graph.write(self.out, value);
        Ok(())
    }
}
