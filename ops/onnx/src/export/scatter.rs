//! Rows and elements at indices, and the gradients of what picks them.

use autobwd::{DType, Result, program::Var};
use autobwd_ops::{
    index::ScatterNdAdd,
    scatter::{Scatter, TakeAlongAxisGrad},
    top_k::TopKV2Grad,
};

use super::{
    ExportOp, ExportRule,
    onnx_graph::{NodeAttr, OnnxGraph, OnnxValue},
    rule,
};

pub(super) fn rules() -> Vec<(&'static str, ExportRule)> {
    vec![rule::<Scatter>(), rule::<ScatterNdAdd>(), rule::<TakeAlongAxisGrad>(), rule::<TopKV2Grad>()]
}

const ADD: (&str, NodeAttr<'_>) = ("reduction", NodeAttr::Text("add"));

/// Indices of int64.
fn read_index(graph: &mut OnnxGraph<'_>, index: Var) -> Result<OnnxValue> {
    let value = graph.read(index)?;
    Ok(if graph.dtype(index)? == DType::I64 { value } else { graph.cast(value, DType::I64) })
}

/// Zeros in the shape of `x`, to which `elements` are added at indices along an axis.
fn add_elements(
    graph: &mut OnnxGraph<'_>,
    x: Var,
    [index, elements]: [Var; 2],
    axis: i64,
) -> Result<OnnxValue> {
    let (dims, dtype) = (graph.run_dims(x)?, graph.dtype(elements)?);
    let (index, elements) = (read_index(graph, index)?, graph.read(elements)?);
    let zeros = graph.filled_to(dtype, 0.0, &dims)?;
    Ok(graph.op("ScatterElements", &[zeros, index, elements], &[("axis", NodeAttr::Int(axis)), ADD]))
}

impl ExportOp for TakeAlongAxisGrad {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let axis = graph.axis(self.dinput, self.axis)? as i64;
        let dinput = add_elements(graph, self.input, [self.index, self.dresult], axis)?;
        graph.write(self.dinput, dinput);
        Ok(())
    }
}
impl ExportOp for TopKV2Grad {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let axis = graph.axis(self.x, self.axis)? as i64;
        let dx = add_elements(graph, self.x, [self.indices, self.dout], axis)?;
        graph.write(self.dx, dx);
        Ok(())
    }
}

impl ExportOp for ScatterNdAdd {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let index = read_index(graph, self.index)?;
        let operands = [graph.read(self.x)?, index, graph.read(self.updates)?];
        let out = graph.op("ScatterND", &operands, &[ADD]);
        graph.write(self.out, out);
        Ok(())
    }
}
impl ExportOp for Scatter {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let (mut x, updates) = (graph.read(self.x)?, graph.read(self.updates)?);
        let ids = read_index(graph, self.ids)?;
        let ids = graph.reshape(ids, &[-1, 1])?;
        let out = if self.overwrite {
            graph.op("ScatterND", &[x, ids, updates], &[])
        } else {
            // Rows with an index begin at 0.
            let dims = graph.run_dims(self.updates)?;
            let zeros = graph.filled_to(graph.dtype(self.x)?, 0.0, &dims)?;
            x = graph.op("ScatterND", &[x, ids, zeros], &[]);
            graph.op("ScatterND", &[x, ids, updates], &[ADD])
        };
        graph.write(self.out, out);
        Ok(())
    }
}
