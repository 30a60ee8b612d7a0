//! Bitwise operators.

use autobwd::{DType, Result};
use autobwd_ops::bitwise::{BitwiseAnd, BitwiseNot, BitwiseOr, BitwiseXor};

use super::{ExportOp, ExportRule, onnx_graph::OnnxGraph, rule};

pub(super) fn rules() -> Vec<(&'static str, ExportRule)> {
    vec![rule::<BitwiseAnd>(), rule::<BitwiseNot>(), rule::<BitwiseOr>(), rule::<BitwiseXor>()]
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
