//! Look-up by index.

use autobwd::{DType, Result};
use autobwd_ops::{
    gather::Gather,
    scatter::{GatherNd, TakeAlongAxis},
};

use super::{
    ExportOp, ExportRule,
    onnx_graph::{NodeAttr, OnnxGraph},
    rule,
};

pub(super) fn rules() -> Vec<(&'static str, ExportRule)> {
    vec![rule::<Gather>(), rule::<GatherNd>(), rule::<TakeAlongAxis>()]
}

impl ExportOp for Gather {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let (x, index) = (graph.read(self.x)?, graph.read(self.index)?);
        // A column of indices is a list, here.
        let index = if graph.rank(self.index)? > 1 { graph.reshape(index, &[-1])? } else { index };
        let rows = graph.op("Gather", &[x, index], &[("axis", NodeAttr::Int(i64::from(self.axis)))]);
        graph.write(self.out, rows);
        Ok(())
    }
}

impl ExportOp for GatherNd {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let (x, index) = (graph.read(self.x)?, graph.read(self.index)?);
        let index = graph.cast(index, DType::I64);
        let slices = graph.op("GatherND", &[x, index], &[]);
        graph.write(self.out, slices);
        Ok(())
    }
}

impl ExportOp for TakeAlongAxis {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let axis = [("axis", NodeAttr::Int(graph.axis(self.input, self.axis)? as i64))];
        let (x, index) = (graph.read(self.input)?, graph.read(self.index)?);
        let taken = graph.op("GatherElements", &[x, index], &axis);
        graph.write(self.result, taken);
        Ok(())
    }
}
