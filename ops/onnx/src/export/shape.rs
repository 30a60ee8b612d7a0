//! Operators that move elements, and constants.

use autobwd::{DType, Error, ErrorKind, Result, program::Var};
use autobwd_ops::shape::{
    Assign, Cast, Concat, ConcatGrad, Reshape2, Split, Squeeze2, Transpose2, TrilTriu, Unsqueeze2,
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
        rule::<Reshape2>(),
        rule::<Split>(),
        rule::<Squeeze2>(),
        rule::<Transpose2>(),
        rule::<TrilTriu>(),
        rule::<Unsqueeze2>(),
    ]
}

/// Returns an error if a slot that replaces an attribute is in use.
fn require_attribute(slots: &[Option<Var>], lists: &[&[Var]]) -> Result<()> {
    if slots.iter().all(Option::is_none) && lists.iter().all(|list| list.is_empty()) {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Format, "numbers from tensors, not attributes, have no form in ONNX"))
}

/// `out` = `x` in the shape of `out`, by an operator of ONNX with axes where that is unknown: a reshape with several
/// unknown dimensions has to compute them.
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

impl ExportOp for Split {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        require_attribute(&[self.axis_tensor], &[])?;
        let axis = graph.axis(self.x, self.axis)?;
        let lengths: Result<Vec<i64>> = self.out.iter().map(|out| graph.dim(*out, axis)).collect();
        let x = graph.read(self.x)?;
        let axis = ("axis", NodeAttr::Int(axis as i64));
        let parts = match lengths {
            Err(_) if self.num > 0 && self.sections_tensor_list.is_empty() => {
                let attrs = [axis, ("num_outputs", NodeAttr::Int(i64::from(self.num)))];
                graph.many("Split", &[Some(x)], &attrs, self.out.len())
            }
            lengths => {
                let sections = graph.ints(&lengths?)?;
                graph.many("Split", &[Some(x), Some(sections)], &[axis], self.out.len())
            }
        };
        self.out.iter().zip(parts).for_each(|(out, part)| graph.write(*out, part));
        Ok(())
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
