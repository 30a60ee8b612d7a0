//! Matrix products.

use autobwd::{Result, program::Var};
use autobwd_ops::matmul::MatmulV2;

use super::{
    ExportOp, ExportRule,
    onnx_graph::{OnnxGraph, OnnxValue},
    rule,
};

pub(super) fn rules() -> Vec<(&'static str, ExportRule)> {
    vec![rule::<MatmulV2>()]
}

/// ONNX also takes a vector on the left as a row and one on the right as a column.
impl ExportOp for MatmulV2 {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let factor = |graph: &mut OnnxGraph<'_>, var: Var, transposed: bool| -> Result<OnnxValue> {
            let (value, rank) = (graph.read(var)?, graph.rank(var)?);
            Ok(if transposed && rank > 1 { graph.transposed(value, rank) } else { value })
        };
        let factors = [factor(graph, self.x, self.trans_x)?, factor(graph, self.y, self.trans_y)?];
        let out = graph.op("MatMul", &factors, &[]);
        graph.write(self.out, out);
        Ok(())
    }
}
