//! Products of matrices that are transposed before: the product reads them as they are.

use autobwd::{New, Program, VarDesc, emit, program::Attr};

use super::{
    functions::KnownFunction,
    subgraph::{Subgraph, Uses},
};
use crate::matmul::MatmulV2;

/// A product of a transposition of the last two dimensions, as one of what is transposed.
pub(super) fn find(program: &Program, uses: &Uses, end: usize) -> Option<(Subgraph, KnownFunction)> {
    let product = program.root().ops.get(end).filter(|op| op.is::<MatmulV2>())?;
    let factors = [("X", "trans_x"), ("Y", "trans_y")].map(|(slot, flag)| {
        let (var, is_transposed) =
            (*product.inputs.get(slot).first()?, product.attrs.get(flag) == Some(&Attr::Bool(true)));
        let source = uses.transposition(program, var).filter(|(_, _, order)| exchanges_the_last(order));
        Some(source.map_or((None, var, is_transposed), |(i, source, _)| (Some(i), source, !is_transposed)))
    });
    let [(x_op, x, trans_x), (y_op, y, trans_y)] = [factors[0]?, factors[1]?];
    let bypassed: Vec<usize> = x_op.into_iter().chain(y_op).collect();
    let metas = [x, y].map(|var| program.root().vars.get(&var).map(VarDesc::meta));
    let metas = metas.into_iter().collect::<Option<Vec<_>>>().filter(|_| !bypassed.is_empty())?;
    let function = KnownFunction::new(&metas, &|inputs| {
        emit(MatmulV2 { x: (&inputs[0]).into(), y: (&inputs[1]).into(), out: New, trans_x, trans_y }).out
    })?;
    Some((
        Subgraph { ops: vec![end], inputs: vec![x, y], output: product.writes().next()?, bypassed },
        function,
    ))
}

/// Whether an order of dimensions exchanges the last two.
fn exchanges_the_last(order: &[i32]) -> bool {
    let mut exchanged: Vec<i32> = (0..order.len() as i32).collect();
    let last = exchanged.len().saturating_sub(2);
    exchanged[last..].reverse();
    order.len() > 1 && order == exchanged
}
