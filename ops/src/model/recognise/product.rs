//! Products of matrices that are transposed before: the product reads them as they are.

use autobwd::{
    New, OpDesc, Program, VarDesc, emit,
    program::{Attr, Var},
};

use super::{
    functions::Function,
    subgraph::{Subgraph, Uses},
};
use crate::matmul::MatmulV2;

/// A product of a transposition of the last two dimensions, as one of what is transposed.
pub(super) fn find(program: &Program, uses: &Uses, end: usize) -> Option<(Subgraph, Function)> {
    let product = program.root().ops.get(end).filter(|op| op.is::<MatmulV2>())?;
    let factors = [("X", "trans_x"), ("Y", "trans_y")].map(|(slot, flag)| {
        let (var, is_transposed) =
            (*product.inputs.get(slot).first()?, product.attrs.get(flag) == Some(&Attr::Bool(true)));
        let source = uses.writer(program, var).and_then(|(i, op)| Some((i, transposed(op)?)));
        Some(source.map_or((None, var, is_transposed), |(i, source)| (Some(i), source, !is_transposed)))
    });
    let [(x_op, x, trans_x), (y_op, y, trans_y)] = [factors[0]?, factors[1]?];
    let bypassed: Vec<usize> = x_op.into_iter().chain(y_op).collect();
    let metas = [x, y].map(|var| program.root().vars.get(&var).map(VarDesc::meta));
    let metas = metas.into_iter().collect::<Option<Vec<_>>>().filter(|_| !bypassed.is_empty())?;
    let function = Function::new(&metas, &|inputs| {
        emit(MatmulV2 { x: (&inputs[0]).into(), y: (&inputs[1]).into(), out: New, trans_x, trans_y }).out
    })?;
    Some((
        Subgraph { ops: vec![end], inputs: vec![x, y], output: product.writes().next()?, bypassed },
        function,
    ))
}

/// What an operator transposes, if it exchanges the last two dimensions.
fn transposed(op: &OpDesc) -> Option<Var> {
    let Some(Attr::I32s(order)) = op.attrs.get("axis").filter(|_| &*op.ty == "transpose2") else {
        return None;
    };
    let mut exchanged: Vec<i32> = (0..order.len() as i32).collect();
    exchanged.len().checked_sub(2).map(|i| exchanged[i..].reverse())?;
    op.inputs.get("X").first().filter(|_| *order == exchanged).copied()
}
