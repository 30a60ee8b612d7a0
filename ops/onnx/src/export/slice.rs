//! Slices, padding and their gradients.

use autobwd::{DType, Error, ErrorKind, Result, program::Var};
use autobwd_ops::shape::{
    Flip, Pad, PadGrad, Roll, RollGrad, Slice, SliceGrad, StridedSlice, StridedSliceGrad,
};

use super::{
    ExportOp, ExportRule,
    dims::OnnxDim,
    fill::shape_from,
    onnx_graph::{NodeAttr, OnnxGraph, OnnxValue},
    rule,
};

pub(super) fn rules() -> Vec<(&'static str, ExportRule)> {
    vec![
        rule::<Flip>(),
        rule::<Pad>(),
        rule::<PadGrad>(),
        rule::<Roll>(),
        rule::<RollGrad>(),
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
        let value = graph.scalar(graph.dtype(self.x)?, f64::from(self.pad_value))?;
        pad(graph, [self.x, self.out], pads(&self.paddings, 1), value)
    }
}
impl ExportOp for PadGrad {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        // Negative padding removes elements.
        let zero = graph.scalar(graph.dtype(self.dout)?, 0.0)?;
        pad(graph, [self.dout, self.dx], pads(&self.paddings, -1), zero)
    }
}

/// `out` = `x` with an element added around it.
fn pad(graph: &mut OnnxGraph<'_>, [x, out]: [Var; 2], pads: Vec<i64>, element: OnnxValue) -> Result<()> {
    let mut value = graph.read(x)?;
    if !pads.is_empty() {
        let pads = graph.ints(&pads)?;
        value = graph.op("Pad", &[value, pads, element], &[]);
    }
    graph.write(out, value);
    Ok(())
}

/// Paddings before all dimensions, then after them, from pairs.
fn pads(pairs: &[i32], sign: i64) -> Vec<i64> {
    let of = |at: usize| pairs.iter().skip(at).step_by(2).map(move |padding| sign * i64::from(*padding));
    of(0).chain(of(1)).collect()
}

impl ExportOp for Flip {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let (x, axes, n) = (graph.read(self.x)?, graph.axes(self.x, &self.axis)?, self.axis.len());
        // ONNX Runtime slices and pads no scalars.
        if n == 0 {
            graph.write(self.out, x);
            return Ok(());
        }
        let starts = graph.ints(&vec![-1; n])?;
        let ends = graph.ints(&vec![i64::MIN; n])?;
        let (axes, steps) = (graph.ints(&axes)?, graph.ints(&vec![-1; n])?);
        let value = graph.op("Slice", &[x, starts, ends, axes, steps], &[]);
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

/// Where the elements begin that a shift moves to the start.
fn roll_end(graph: &mut OnnxGraph<'_>, length: OnnxDim, shift: i64) -> Result<OnnxValue> {
    if let OnnxDim::Known(length) = length {
        return graph.ints(&[if length > 0 { length - shift.rem_euclid(length) } else { 0 }]);
    }
    let (length, one) = (graph.shape_list(&[length])?, graph.ints(&[1])?);
    let divisor = graph.op("Max", &[length, one], &[]);
    let shift = graph.ints(&[shift])?;
    let shift = graph.op("Mod", &[shift, divisor], &[]);
    Ok(graph.sub(length, shift))
}

/// `out` = `x`, whose elements move along axes by shifts, from the end to the start.
fn roll(
    graph: &mut OnnxGraph<'_>,
    [x, out]: [Var; 2],
    tensor: Option<Var>,
    shifts: &[i64],
    axes: &[i64],
) -> Result<()> {
    if tensor.is_some() {
        return Err(Error::new(ErrorKind::Format, "shifts from a tensor have no form in ONNX"));
    }
    let (dims, mut value) = (graph.run_dims(x)?, graph.read(x)?);
    let flat = axes.is_empty();
    if flat {
        value = graph.reshape(value, &[-1])?;
    }
    for (i, shift) in shifts.iter().enumerate() {
        let axis = axes.get(i).map_or(Ok(0), |axis| graph.axis(x, *axis))?;
        let end =
            roll_end(graph, if flat { graph.merged_dims(x, 0, dims.len())? } else { dims[axis] }, *shift)?;
        let [start, behind, axes] =
            [graph.ints(&[0])?, graph.ints(&[i64::MAX])?, graph.ints(&[axis as i64])?];
        let parts = [[end, behind], [start, end]];
        let parts = parts.map(|[start, end]| graph.op("Slice", &[value, start, end, axes], &[]));
        value = graph.op("Concat", &parts, &[("axis", NodeAttr::Int(axis as i64))]);
    }
    if flat {
        value = graph.reshape_to(value, &dims)?;
    }
    graph.write(out, value);
    Ok(())
}

impl ExportOp for Roll {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        roll(graph, [self.x, self.out], self.shifts_tensor, &self.shifts, &self.axis)
    }
}
impl ExportOp for RollGrad {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let back: Vec<i64> = self.shifts.iter().map(|shift| shift.saturating_neg()).collect();
        roll(graph, [self.dout, self.dx], self.shifts_tensor, &back, &self.axis)
    }
}
