//! Selection by a mask, with broadcasting.

use autobwd::{DType, Dims, Expr, New, emit, tensor::Dim};

use super::refusals::failed;
use crate::{fill::FillAnyLike, logic::Where, shape::ExpandAsV2};

/// [`Math::where_cond`](super::Math::where_cond).
#[track_caller]
pub(super) fn where_cond(condition: &Expr, yes: &Expr, no: &Expr) -> Expr {
    let operands = [condition, yes, no];
    let dims = operands.map(|operand| operand.dims());
    // An open dimension may agree with 1 and have to be broadcast.
    let is_one_shape = dims[1..].iter().all(|other| *other == dims[0]);
    if is_one_shape || operands.iter().any(|operand| operand.check().is_err()) {
        return emit(Where { condition: condition.into(), x: yes.into(), y: no.into(), out: New }).out;
    }
    if !dims.iter().enumerate().all(|(i, one)| dims[..i].iter().all(|other| broadcasts(one, other))) {
        let text = format!(
            "`where_cond`: the shapes of the condition {}, of `yes` {} and of `no` {} do not broadcast",
            dims[0], dims[1], dims[2]
        );
        return failed(&operands, text);
    }
    // Open dimensions are known when the program runs, from the sum of zeros.
    let zeros =
        |x: &Expr| emit(FillAnyLike { x: x.into(), out: New, value: 0.0, dtype: Some(DType::F32) }).out;
    let full = zeros(condition) + zeros(yes) + zeros(no);
    let [condition, x, y] = operands.map(|operand| {
        let (x, y) = (operand.into(), Some((&full).into()));
        emit(ExpandAsV2 { x, y, out: New, target_shape: vec![] }).out.into()
    });
    emit(Where { condition, x, y, out: New }).out
}

/// Whether two shapes broadcast, aligned at the last dimension, as far as is known.
fn broadcasts(one: &Dims, other: &Dims) -> bool {
    let is_one = |dim: Dim| dim == 1;
    one.iter().rev().zip(other.iter().rev()).all(|(a, b)| a.agrees(*b) || is_one(*a) || is_one(*b))
}
