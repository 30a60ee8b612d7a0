//! Rows and elements at indices, and the gradients of what picks them.

use autobwd::{DType, Result, program::Var};
use autobwd_ops::{
    index::ScatterNdAdd,
    scatter::{Scatter, TakeAlongAxisGrad},
};

use super::{
    ExportOp, ExportRule,
    onnx_graph::{NodeAttr, OnnxGraph, OnnxValue},
    rule,
};

pub(super) fn rules() -> Vec<(&'static str, ExportRule)> {
    vec![rule::<Scatter>(), rule::<ScatterNdAdd>(), rule::<TakeAlongAxisGrad>()]
}

const ADD: (&str, NodeAttr<'_>) = ("reduction", NodeAttr::Text("add"));

/// Indices of int64.
fn read_index(graph: &mut OnnxGraph<'_>, index: Var) -> Result<OnnxValue> {
    let value = graph.read(index)?;
    Ok(if graph.dtype(index)? == DType::I64 { value } else { graph.cast(value, DType::I64) })
}

impl ExportOp for TakeAlongAxisGrad {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let (axis, dtype) = (graph.axis(self.input, self.axis)? as i64, graph.dtype(self.dresult)?);
        let (index, elements) = (read_index(graph, self.index)?, graph.read(self.dresult)?);
        let dims = graph.run_dims(self.input)?;
        let zeros = graph.filled_to(dtype, 0.0, &dims)?;
        let attrs = [("axis", NodeAttr::Int(axis)), ADD];
        let dinput = graph.op("ScatterElements", &[zeros, index, elements], &attrs);
        graph.write(self.dinput, dinput);
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
