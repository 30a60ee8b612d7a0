//! Operators that move elements, and constants.

use autobwd::{DType, Error, ErrorKind, Result, program::Var};
use autobwd_ops::shape::{
    Assign, Cast, Concat, ConcatGrad, FlattenContiguousRange, FlattenContiguousRangeGrad, Reshape2,
    Reshape2Grad, Split, Squeeze2, Squeeze2Grad, Stack, StackGrad, Transpose2, Transpose2Grad, TrilTriu,
    Unbind, Unsqueeze2, Unsqueeze2Grad, Unstack, UnstackGrad,
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
        rule::<Assign>(),
        rule::<Cast>(),
        rule::<Concat>(),
        rule::<ConcatGrad>(),
        rule::<FlattenContiguousRange>(),
        rule::<FlattenContiguousRangeGrad>(),
        rule::<Reshape2>(),
        rule::<Reshape2Grad>(),
        rule::<Split>(),
        rule::<Squeeze2>(),
        rule::<Squeeze2Grad>(),
        rule::<Stack>(),
        rule::<StackGrad>(),
        rule::<Transpose2>(),
        rule::<Transpose2Grad>(),
        rule::<TrilTriu>(),
        rule::<Unbind>(),
        rule::<Unsqueeze2>(),
        rule::<Unsqueeze2Grad>(),
        rule::<Unstack>(),
        rule::<UnstackGrad>(),
    ]
}

/// Returns an error if a slot that replaces an attribute is in use.
fn require_attribute(slots: &[Option<Var>], lists: &[&[Var]]) -> Result<()> {
    if slots.iter().all(Option::is_none) && lists.iter().all(|list| list.is_empty()) {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Format, "numbers from tensors, not attributes, have no form in ONNX"))
}

macro_rules! reshape_grads {
    ($($op:ident),*) => {$(
        impl ExportOp for $op {
            fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
                let (value, dims) = (graph.read(self.dout)?, graph.remembered_dims(self.x_shape)?);
                let value = graph.reshape_to(value, &dims)?;
                graph.write(self.dx, value);
                Ok(())
            }
        }
    )*};
}
reshape_grads!(FlattenContiguousRangeGrad, Reshape2Grad, Squeeze2Grad, Unsqueeze2Grad);

/// `out` = `x` in the shape of `out`, by an operator of ONNX with axes where that is unknown.
fn reshape_axes(
    graph: &mut OnnxGraph<'_>,
    op: &str,
    [x, out, x_shape]: [Var; 3],
    axes: &[i32],
) -> Result<()> {
    let value = graph.read(x)?;
    graph.remembered.insert(x_shape, value);
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

impl ExportOp for Squeeze2 {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        reshape_axes(graph, "Squeeze", [self.x, self.out, self.x_shape], &self.axes)
    }
}
impl ExportOp for Unsqueeze2 {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        reshape_axes(graph, "Unsqueeze", [self.x, self.out, self.x_shape], &self.axes)
    }
}

impl ExportOp for FlattenContiguousRange {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let value = graph.read(self.x)?;
        graph.remembered.insert(self.x_shape, value);
        let mut dims = graph.run_dims(self.x)?;
        if dims.is_empty() {
            dims.push(OnnxDim::Known(1));
        }
        let at = |axis: i32| (if axis < 0 { axis + dims.len() as i32 } else { axis }) as usize;
        let (start, stop) = (at(self.start_axis), at(self.stop_axis));
        if graph.rank(self.x)? > 0 {
            let merged = graph.merged_dims(self.x, start, stop + 1)?;
            dims.splice(start..=stop, [merged]);
        }
        let value = graph.reshape_to(value, &dims)?;
        graph.write(self.out, value);
        Ok(())
    }
}

impl ExportOp for Reshape2 {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let value = graph.read(self.x)?;
        graph.remembered.insert(self.x_shape, value);
        let value = match graph.dims(self.out) {
            Ok(dims) => graph.reshape(value, &dims)?,
            Err(_) => {
                // Single dimensions come first.
                let whole = self.shape_input.filter(|_| self.shape_tensor.is_empty());
                let shape = match shape_from(graph, whole, &self.shape_tensor)? {
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

impl ExportOp for Assign {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let value = graph.read(self.x)?;
        graph.write(self.out, value);
        Ok(())
    }
}

impl ExportOp for Cast {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let (value, dtype) = (graph.read(self.x)?, graph.dtype(self.out)?);
        let value = graph.cast(value, dtype);
        graph.write(self.out, value);
        Ok(())
    }
}

impl ExportOp for Transpose2 {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let (value, axes) = (graph.read(self.x)?, graph.axes(self.x, &self.axis)?);
        let value = graph.permute(value, &axes);
        graph.write(self.out, value);
        Ok(())
    }
}
impl ExportOp for Transpose2Grad {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let (value, moved) = (graph.read(self.dout)?, graph.axes(self.dout, &self.axis)?);
        let mut axes = vec![0; moved.len()];
        moved.into_iter().enumerate().for_each(|(i, axis)| axes[axis as usize] = i as i64);
        let value = graph.permute(value, &axes);
        graph.write(self.dx, value);
        Ok(())
    }
}

impl ExportOp for Concat {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        require_attribute(&[self.axis_tensor], &[])?;
        let parts: Vec<OnnxValue> = self.x.iter().map(|x| graph.read(*x)).collect::<Result<_>>()?;
        let value = graph.op("Concat", &parts, &[("axis", NodeAttr::Int(i64::from(self.axis)))]);
        graph.write(self.out, value);
        Ok(())
    }
}
impl ExportOp for ConcatGrad {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        require_attribute(&[self.axis_tensor], &[])?;
        let axis = graph.axis(self.dout, self.axis)?;
        let length = |x: &Var| graph.merged_dims(*x, axis, axis + 1);
        let lengths: Vec<OnnxDim> = self.x.iter().map(length).collect::<Result<_>>()?;
        let (dout, sections) = (graph.read(self.dout)?, graph.shape_list(&lengths)?);
        let axis = [("axis", NodeAttr::Int(axis as i64))];
        let parts = graph.many("Split", &[Some(dout), Some(sections)], &axis, lengths.len());
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

impl ExportOp for Split {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        require_attribute(&[self.axis_tensor], &[])?;
        let axis = graph.axis(self.x, self.axis)?;
        let lengths: Result<Vec<i64>> = self.out.iter().map(|out| graph.dim(*out, axis)).collect();
        let x = graph.read(self.x)?;
        let parts = match lengths {
            Err(_) if self.num > 0 && self.sections_tensor_list.is_empty() => {
                let count = NodeAttr::Int(i64::from(self.num));
                let attrs = [("axis", NodeAttr::Int(axis as i64)), ("num_outputs", count)];
                graph.many("Split", &[Some(x)], &attrs, self.out.len())
            }
            lengths => split(graph, x, axis, &lengths?)?,
        };
        self.out.iter().zip(parts).for_each(|(out, part)| graph.write(*out, part));
        Ok(())
    }
}

/// Sets `out` to values along a new axis.
fn stack(graph: &mut OnnxGraph<'_>, parts: &[Var], out: Var, axis: i32) -> Result<()> {
    let axis = graph.axis(out, axis)? as i64;
    let axes = graph.ints(&[axis])?;
    let parts: Vec<OnnxValue> = parts.iter().map(|x| graph.read(*x)).collect::<Result<_>>()?;
    let parts: Vec<OnnxValue> = parts.iter().map(|x| graph.op("Unsqueeze", &[*x, axes], &[])).collect();
    let value = graph.op("Concat", &parts, &[("axis", NodeAttr::Int(axis))]);
    graph.write(out, value);
    Ok(())
}

impl ExportOp for Stack {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        stack(graph, &self.x, self.y, self.axis)
    }
}
impl ExportOp for UnstackGrad {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        stack(graph, &self.dy, self.dx, self.axis)
    }
}
impl ExportOp for StackGrad {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
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

impl ExportOp for Unbind {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        unstack(graph, self.x, &self.out, self.axis)
    }
}
impl ExportOp for Unstack {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        unstack(graph, self.x, &self.y, self.axis)
    }
}

impl ExportOp for TrilTriu {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let (x, diagonal) = (graph.read(self.x)?, graph.scalar(DType::I64, f64::from(self.diagonal))?);
        let upper = [("upper", NodeAttr::Int(i64::from(!self.lower)))];
        let value = graph.op("Trilu", &[x, diagonal], &upper);
        graph.write(self.out, value);
        Ok(())
    }
}
