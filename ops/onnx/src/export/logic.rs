//! Bitwise operators and reductions of truth values.

use autobwd::{DType, Result, program::Var};
use autobwd_ops::{
    bitwise::{BitwiseAnd, BitwiseNot, BitwiseOr, BitwiseXor},
    reduce::{LogicalReduceAttrs, ReduceAll, ReduceAny},
};

use super::{ExportOp, ExportRule, onnx_graph::OnnxGraph, rule};

pub(super) fn rules() -> Vec<(&'static str, ExportRule)> {
    vec![
        rule::<BitwiseAnd>(),
        rule::<BitwiseNot>(),
        rule::<BitwiseOr>(),
        rule::<BitwiseXor>(),
        rule::<ReduceAll>(),
        rule::<ReduceAny>(),
    ]
}

macro_rules! bitwise {
    ($($op:ident $bits:literal $bools:literal $($operand:ident)+),*) => {$(
        impl ExportOp for $op {
            fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
                let name = if graph.dtype(self.x)? == DType::Bool { $bools } else { $bits };
                let operands = [$(graph.read(self.$operand)?),+];
                let out = graph.op(name, &operands, &[]);
                graph.write(self.out, out);
                Ok(())
            }
        }
    )*};
}
bitwise!(
    BitwiseAnd "BitwiseAnd" "And" x y, BitwiseNot "BitwiseNot" "Not" x, BitwiseOr "BitwiseOr" "Or" x y,
    BitwiseXor "BitwiseXor" "Xor" x y
);

/// `out` = whether a truth value, or all of them, hold: the maximum or the minimum as integers.
fn reduce(
    graph: &mut OnnxGraph<'_>,
    op: &str,
    [x, out]: [Var; 2],
    reduce: &LogicalReduceAttrs,
) -> Result<()> {
    let rank = graph.rank(x)? as i64;
    let from_start = |dim: &i64| dim + if *dim < 0 { rank } else { 0 };
    let axes: Vec<i64> = match reduce.reduce_all || reduce.dim.is_empty() {
        true => (0..rank).collect(),
        false => reduce.dim.iter().map(from_start).filter(|dim| (0..rank).contains(dim)).collect(),
    };
    let (value, dtype) = (graph.read(x)?, graph.dtype(out)?);
    let value = graph.cast(value, DType::Bool);
    let value = graph.cast(value, DType::I32);
    let value = graph.reduce(op, value, &axes, reduce.keep_dim)?;
    let value = graph.cast(value, dtype);
    graph.write(out, value);
    Ok(())
}

impl ExportOp for ReduceAll {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        reduce(graph, "ReduceMin", [self.x, self.out], &self.reduce)
    }
}
impl ExportOp for ReduceAny {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        reduce(graph, "ReduceMax", [self.x, self.out], &self.reduce)
    }
}
