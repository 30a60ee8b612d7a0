//! Operators that move elements, and constants.

use std::cmp::Ordering;

use autobwd::{DType, Error, ErrorKind, Result, program::Var};
use autobwd_ops::shape::{
    Assign, Cast, Concat, ConcatGrad, ExpandAsV2, ExpandAsV2Grad, ExpandV2, ExpandV2Grad,
    FlattenContiguousRange, FlattenContiguousRangeGrad, Flip, Pad, PadGrad, Reshape2, Reshape2Grad, Slice,
    SliceGrad, Split, Squeeze2, Squeeze2Grad, Stack, StackGrad, Tile, Transpose2, Transpose2Grad, TrilTriu,
    Unbind, Unsqueeze2, Unsqueeze2Grad, Unstack,
};

use super::{
    Lower, LowerRule,
    fill::shape_from,
    onnx_graph::{NodeAttr, OnnxGraph, OnnxValue},
    rule,
};

pub(super) fn rules() -> Vec<(&'static str, LowerRule)> {
    vec![
        rule::<Assign>(),
        rule::<Cast>(),
        rule::<Concat>(),
        rule::<ConcatGrad>(),
        rule::<ExpandAsV2>(),
        rule::<ExpandAsV2Grad>(),
        rule::<ExpandV2>(),
        rule::<ExpandV2Grad>(),
        rule::<FlattenContiguousRange>(),
        rule::<FlattenContiguousRangeGrad>(),
        rule::<Flip>(),
        rule::<Pad>(),
        rule::<PadGrad>(),
        rule::<Reshape2>(),
        rule::<Reshape2Grad>(),
        rule::<Slice>(),
        rule::<SliceGrad>(),
        rule::<Split>(),
        rule::<Squeeze2>(),
        rule::<Squeeze2Grad>(),
        rule::<Stack>(),
        rule::<StackGrad>(),
        rule::<Tile>(),
        rule::<Transpose2>(),
        rule::<Transpose2Grad>(),
        rule::<TrilTriu>(),
        rule::<Unbind>(),
        rule::<Unsqueeze2>(),
        rule::<Unsqueeze2Grad>(),
        rule::<Unstack>(),
    ]
}

/// Returns an error if a slot that replaces an attribute is in use.
fn require_attribute(slots: &[Option<Var>], lists: &[&[Var]]) -> Result<()> {
    if slots.iter().all(Option::is_none) && lists.iter().all(|list| list.is_empty()) {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Format, "numbers from tensors, not attributes, have no form in ONNX"))
}

macro_rules! reshapes {
    ($($op:ident $from:ident $to:ident),* $(,)?) => {$(
        impl Lower for $op {
            fn lower(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
                let value = graph.read(self.$from)?;
                let value = graph.shaped_as(value, self.$to)?;
                graph.write(self.$to, value);
                Ok(())
            }
        }
    )*};
}
reshapes!(
    FlattenContiguousRangeGrad dout dx, Reshape2Grad dout dx, Squeeze2Grad dout dx, Unsqueeze2Grad dout dx,
);

/// `out` = `x` in the shape of `out`, by an operator of ONNX with axes where that is unknown.
fn reshape_axes(graph: &mut OnnxGraph<'_>, op: &str, [x, out]: [Var; 2], axes: &[i32]) -> Result<()> {
    let value = graph.read(x)?;
    let value = match graph.shaped_as(value, out) {
        Ok(value) => value,
        Err(unknown) if axes.is_empty() => return Err(unknown),
        Err(_) => {
            let axes = graph.ints(&axes.iter().map(|axis| i64::from(*axis)).collect::<Vec<_>>())?;
            graph.op(op, &[value, axes], &[])
        }
    };
    graph.write(out, value);
    Ok(())
}

impl Lower for Squeeze2 {
    fn lower(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        reshape_axes(graph, "Squeeze", [self.x, self.out], &self.axes)
    }
}
impl Lower for Unsqueeze2 {
    fn lower(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        reshape_axes(graph, "Unsqueeze", [self.x, self.out], &self.axes)
    }
}

impl Lower for FlattenContiguousRange {
    fn lower(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let (value, shape) = (graph.read(self.x)?, graph.shape(self.out)?);
        let value = match graph.dims(self.out) {
            Ok(dims) => graph.reshape(value, &dims)?,
            Err(unknown) => {
                let start = graph.axis(self.x, self.start_axis)?;
                // 0 keeps a dimension before the flattened one.
                let of = |(at, dim): (usize, &i64)| match at.cmp(&start) {
                    Ordering::Less => 0,
                    Ordering::Equal => -1,
                    Ordering::Greater => *dim,
                };
                let dims: Vec<i64> = shape.iter().enumerate().map(of).collect();
                if dims[start + 1..].contains(&-1) {
                    return Err(unknown);
                }
                let dims = graph.ints(&dims)?;
                graph.op("Reshape", &[value, dims], &[])
            }
        };
        graph.write(self.out, value);
        Ok(())
    }
}

impl Lower for Reshape2 {
    fn lower(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let value = graph.read(self.x)?;
        let value = match graph.dims(self.out) {
            Ok(dims) => graph.reshape(value, &dims)?,
            Err(_) => {
                let shape = match shape_from(graph, self.shape_input, &self.shape_tensor)? {
                    Some(shape) => shape,
                    None => graph.ints(&self.shape.iter().map(|dim| i64::from(*dim)).collect::<Vec<_>>())?,
                };
                // 0 keeps a dimension, here as there.
                graph.op("Reshape", &[value, shape], &[])
            }
        };
        graph.write(self.out, value);
        Ok(())
    }
}

impl Lower for Assign {
    fn lower(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let value = graph.read(self.x)?;
        graph.write(self.out, value);
        Ok(())
    }
}

impl Lower for Cast {
    fn lower(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let (value, dtype) = (graph.read(self.x)?, graph.dtype(self.out)?);
        let value = graph.cast(value, dtype);
        graph.write(self.out, value);
        Ok(())
    }
}

impl Lower for Transpose2 {
    fn lower(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let (value, axes) = (graph.read(self.x)?, graph.axes(self.x, &self.axis)?);
        let value = graph.permute(value, &axes);
        graph.write(self.out, value);
        Ok(())
    }
}
impl Lower for Transpose2Grad {
    fn lower(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let (value, moved) = (graph.read(self.dout)?, graph.axes(self.dout, &self.axis)?);
        let mut axes = vec![0; moved.len()];
        moved.into_iter().enumerate().for_each(|(i, axis)| axes[axis as usize] = i as i64);
        let value = graph.permute(value, &axes);
        graph.write(self.dx, value);
        Ok(())
    }
}

impl Lower for Concat {
    fn lower(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        require_attribute(&[self.axis_tensor], &[])?;
        let parts: Vec<OnnxValue> = self.x.iter().map(|x| graph.read(*x)).collect::<Result<_>>()?;
        let value = graph.op("Concat", &parts, &[("axis", NodeAttr::Int(i64::from(self.axis)))]);
        graph.write(self.out, value);
        Ok(())
    }
}
impl Lower for ConcatGrad {
    fn lower(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        require_attribute(&[self.axis_tensor], &[])?;
        let axis = graph.axis(self.dout, self.axis)?;
        let lengths: Vec<i64> = self.x.iter().map(|x| graph.dim(*x, axis)).collect::<Result<_>>()?;
        let dout = graph.read(self.dout)?;
        let parts = split(graph, dout, axis, &lengths)?;
        self.dx.iter().zip(parts).for_each(|(dx, part)| graph.write(*dx, part));
        Ok(())
    }
}

/// Consecutive parts along an axis, with those lengths.
fn split(graph: &mut OnnxGraph<'_>, x: OnnxValue, axis: usize, lengths: &[i64]) -> Result<Vec<OnnxValue>> {
    let sections = graph.ints(lengths)?;
    let axis = [("axis", NodeAttr::Int(axis as i64))];
    Ok(graph.many("Split", &[Some(x), Some(sections)], &axis, lengths.len()))
}

impl Lower for Split {
    fn lower(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        require_attribute(&[self.axis_tensor], &[])?;
        let axis = graph.axis(self.x, self.axis)?;
        let lengths: Vec<i64> = self.out.iter().map(|out| graph.dim(*out, axis)).collect::<Result<_>>()?;
        let x = graph.read(self.x)?;
        let parts = split(graph, x, axis, &lengths)?;
        self.out.iter().zip(parts).for_each(|(out, part)| graph.write(*out, part));
        Ok(())
    }
}

impl Lower for Stack {
    fn lower(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let axis = graph.axis(self.y, self.axis)? as i64;
        let axes = graph.ints(&[axis])?;
        let parts: Vec<OnnxValue> = self.x.iter().map(|x| graph.read(*x)).collect::<Result<_>>()?;
        let parts: Vec<OnnxValue> = parts.iter().map(|x| graph.op("Unsqueeze", &[*x, axes], &[])).collect();
        let value = graph.op("Concat", &parts, &[("axis", NodeAttr::Int(axis))]);
        graph.write(self.y, value);
        Ok(())
    }
}
impl Lower for StackGrad {
    fn lower(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let axis = graph.axis(self.dy, self.axis)?;
        let dy = graph.read(self.dy)?;
        let parts = split(graph, dy, axis, &vec![1; self.x.len()])?;
        let axes = graph.ints(&[axis as i64])?;
        for (dx, part) in self.dx.iter().zip(parts) {
            let part = graph.op("Squeeze", &[part, axes], &[]);
            graph.write(*dx, part);
        }
        Ok(())
    }
}

/// The bounds of a slice along its axes: starts and ends from the start.
struct SliceBounds {
    axes: Vec<i64>,
    starts: Vec<i64>,
    ends: Vec<i64>,
}

impl SliceBounds {
    fn of(
        graph: &OnnxGraph<'_>,
        input: Var,
        axes: &[i32],
        [starts, ends]: [&[i32]; 2],
    ) -> Result<SliceBounds> {
        let (dims, axes) = (graph.shape(input)?, graph.axes(input, axes)?);
        let bound = |(axis, bound): (&i64, &i32)| {
            match (dims[*axis as usize], i64::from(*bound)) {
                // ONNX counts from the end and limits bounds, too.
                (-1, bound) => bound,
                (len, bound) => (if bound < 0 { bound + len } else { bound }).clamp(0, len),
            }
        };
        let [starts, ends] = [starts, ends].map(|bounds| axes.iter().zip(bounds).map(bound).collect());
        Ok(SliceBounds { axes, starts, ends })
    }
}

impl Lower for Slice {
    fn lower(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let lists: [&[Var]; 2] = [&self.starts_tensor_list, &self.ends_tensor_list];
        require_attribute(&[self.starts_tensor, self.ends_tensor], &lists)?;
        let bounds = SliceBounds::of(graph, self.input, &self.axes, [&self.starts, &self.ends])?;
        let input = graph.read(self.input)?;
        let [starts, ends, axes] =
            [graph.ints(&bounds.starts)?, graph.ints(&bounds.ends)?, graph.ints(&bounds.axes)?];
        let mut value = graph.op("Slice", &[input, starts, ends, axes], &[]);
        if !self.decrease_axis.is_empty() {
            value = graph.shaped_as(value, self.out)?;
        }
        graph.write(self.out, value);
        Ok(())
    }
}
impl Lower for SliceGrad {
    fn lower(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let lists: [&[Var]; 2] = [&self.starts_tensor_list, &self.ends_tensor_list];
        require_attribute(&[self.starts_tensor, self.ends_tensor], &lists)?;
        let dims = graph.dims(self.dinput)?;
        let bounds = SliceBounds::of(graph, self.dinput, &self.axes, [&self.starts, &self.ends])?;
        let (mut part, mut pads) = (dims.clone(), vec![0; 2 * dims.len()]);
        for ((axis, start), end) in bounds.axes.iter().zip(&bounds.starts).zip(&bounds.ends) {
            let (axis, end) = (*axis as usize, *end.max(start));
            part[axis] = end - start;
            (pads[axis], pads[dims.len() + axis]) = (*start, dims[axis] - end);
        }
        let dout = graph.read(self.dout)?;
        let dout = graph.reshape(dout, &part)?;
        let pads = graph.ints(&pads)?;
        let value = graph.op("Pad", &[dout, pads], &[]);
        graph.write(self.dinput, value);
        Ok(())
    }
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

/// `out` = `x`, broadcast to the shape of `out`.
fn expand(graph: &mut OnnxGraph<'_>, [x, out]: [Var; 2]) -> Result<()> {
    let (from, to) = (graph.shape(x)?, graph.shape(out)?);
    let more = to.len() - from.len();
    // 1 keeps a dimension.
    let kept = |(i, dim): (usize, i64)| if i >= more && from[i - more] == dim { 1 } else { dim };
    let dims: Vec<i64> = to.into_iter().enumerate().map(kept).collect();
    let dims = if dims.contains(&-1) { graph.dims(out)? } else { dims };
    let (x, dims) = (graph.read(x)?, graph.ints(&dims)?);
    let value = graph.op("Expand", &[x, dims], &[]);
    graph.write(out, value);
    Ok(())
}

/// `dx` = `dout`, summed over broadcast dimensions.
fn expand_grad(graph: &mut OnnxGraph<'_>, [dout, dx]: [Var; 2]) -> Result<()> {
    let (from, to) = (graph.dims(dout)?, graph.dims(dx)?);
    let value = graph.read(dout)?;
    let value = graph.sum_to(value, &from, &to)?;
    graph.write(dx, value);
    Ok(())
}

impl Lower for ExpandV2 {
    fn lower(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        expand(graph, [self.x, self.out])
    }
}
impl Lower for ExpandV2Grad {
    fn lower(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        expand_grad(graph, [self.dout, self.dx])
    }
}
impl Lower for ExpandAsV2 {
    fn lower(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        expand(graph, [self.x, self.out])
    }
}
impl Lower for ExpandAsV2Grad {
    fn lower(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        expand_grad(graph, [self.dout, self.dx])
    }
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

/// Sets `out` to the parts of length 1 along an axis, without it.
fn unstack(graph: &mut OnnxGraph<'_>, x: Var, out: &[Var], axis: i32) -> Result<()> {
    let axis = graph.axis(x, axis)?;
    let value = graph.read(x)?;
    let parts = split(graph, value, axis, &vec![1; out.len()])?;
    let axes = graph.ints(&[axis as i64])?;
    for (out, part) in out.iter().zip(parts) {
        let part = graph.op("Squeeze", &[part, axes], &[]);
        graph.write(*out, part);
    }
    Ok(())
}

impl Lower for Unbind {
    fn lower(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        unstack(graph, self.x, &self.out, self.axis)
    }
}
impl Lower for Unstack {
    fn lower(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        unstack(graph, self.x, &self.y, self.axis)
    }
}

impl Lower for Tile {
    fn lower(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        require_attribute(&[self.repeat_times_input], &[&self.repeat_times_tensor])?;
        let (rank, mut dims) = (graph.rank(self.out)?, graph.shape(self.x)?);
        let mut times: Vec<i64> = self.repeat_times.iter().map(|times| i64::from(*times)).collect();
        times.splice(0..0, vec![1; rank - times.len()]);
        let mut value = graph.read(self.x)?;
        if dims.len() < rank {
            dims.splice(0..0, vec![1; rank - dims.len()]);
            value = graph.reshape(value, &dims)?;
        }
        let times = graph.ints(&times)?;
        let value = graph.op("Tile", &[value, times], &[]);
        graph.write(self.out, value);
        Ok(())
    }
}

impl Lower for TrilTriu {
    fn lower(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let (x, diagonal) = (graph.read(self.x)?, graph.scalar(DType::I64, f64::from(self.diagonal))?);
        let upper = [("upper", NodeAttr::Int(i64::from(!self.lower)))];
        let value = graph.op("Trilu", &[x, diagonal], &upper);
        graph.write(self.out, value);
        Ok(())
    }
}
