//! Remainders and evenly spaced numbers.

use autobwd::{DType, Result, program::Var};
use autobwd_ops::{floor_division::ElementwiseMod, ranges::Range};

use super::{
    ExportOp, ExportRule,
    onnx_graph::{NodeAttr, OnnxGraph, OnnxValue},
    rule,
};

pub(super) fn rules() -> Vec<(&'static str, ExportRule)> {
    vec![rule::<ElementwiseMod>(), rule::<Range>()]
}

/// Two operands, the one of lower rank from dimension `axis` of the other one on; −1 aligns the last dimensions.
fn operands(graph: &mut OnnxGraph<'_>, vars: [Var; 2], axis: i32) -> Result<[OnnxValue; 2]> {
    let ranks = [graph.rank(vars[0])?, graph.rank(vars[1])?];
    let mut values = [graph.read(vars[0])?, graph.read(vars[1])?];
    let lower = usize::from(ranks[1] <= ranks[0]);
    let behind = (ranks[1 - lower] - ranks[lower]) as i64 - i64::from(axis);
    if axis >= 0 && behind > 0 && ranks[lower] > 0 {
        // ONNX aligns the last dimensions.
        values[lower] = graph.unsqueeze(values[lower], &(-behind..0).collect::<Vec<_>>())?;
    }
    Ok(values)
}

/// The remainder of floor division, with the sign of `y`.
fn remainder(graph: &mut OnnxGraph<'_>, [x, y]: [OnnxValue; 2], dtype: DType) -> Result<OnnxValue> {
    if !dtype.is_float() {
        return Ok(graph.op("Mod", &[x, y], &[]));
    }
    let zero = graph.scalar(dtype, 0.0)?;
    let rest = graph.op("Mod", &[x, y], &[("fmod", NodeAttr::Int(1))]);
    let exact = graph.op("Equal", &[rest, zero], &[]);
    let below = [rest, y].map(|value| graph.op("Less", &[value, zero], &[]));
    let moved = graph.op("Xor", &below, &[]);
    let other = graph.add(rest, y);
    let value = graph.op("Where", &[moved, other, rest], &[]);
    Ok(graph.op("Where", &[exact, rest, value], &[]))
}

impl ExportOp for ElementwiseMod {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let (values, dtype) = (operands(graph, [self.x, self.y], self.axis)?, graph.dtype(self.x)?);
        let out = remainder(graph, values, dtype)?;
        graph.write(self.out, out);
        Ok(())
    }
}

/// One element as a scalar of that dtype.
fn number(graph: &mut OnnxGraph<'_>, var: Var, dtype: DType) -> Result<OnnxValue> {
    let value = graph.read(var)?;
    let value = if graph.dtype(var)? == dtype { value } else { graph.cast(value, dtype) };
    graph.reshape(value, &[])
}

impl ExportOp for Range {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let dtype = graph.dtype(self.out)?;
        let [start, end, step] = [self.start, self.end, self.step].map(|var| number(graph, var, dtype));
        let out = graph.op("Range", &[start?, end?, step?], &[]);
        graph.write(self.out, out);
        Ok(())
    }
}
