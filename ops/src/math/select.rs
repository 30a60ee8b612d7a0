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
    // Other open dimensions are known when the program runs, from the sum of zeros.
    let zeros =
        |x: &Expr| emit(FillAnyLike { x: x.into(), out: New, value: 0.0, dtype: Some(DType::F32) }).out;
    let widest = widest(&operands);
    let full = widest.map_or_else(|| zeros(condition) + zeros(yes) + zeros(no), Expr::clone);
    let [condition, x, y] = operands.map(|operand| {
        if widest.is_some_and(|widest| widest.dims() == operand.dims()) {
            return operand.into();
        }
        let (x, y) = (operand.into(), Some((&full).into()));
        emit(ExpandAsV2 { x, y, out: New, target_shape: vec![] }).out.into()
    });
    emit(Where { condition, x, y, out: New }).out
}

/// The operand to whose shape all broadcast, if numbers and names of dimensions say so.
pub fn widest<'e>(operands: &[&'e Expr]) -> Option<&'e Expr> {
    let all: Vec<Dims> = operands.iter().map(|operand| operand.dims()).collect();
    let rank = all.iter().map(|dims| dims.len()).max()?;
    let aligned = |dims: &Dims, axis: usize| (axis + dims.len()).checked_sub(rank).map(|at| dims[at]);
    let broadcast = |axis: usize| {
        let sizes = all.iter().map(|dims| aligned(dims, axis).unwrap_or(1.into()));
        sizes.map(Some).reduce(|a, b| a?.broadcast(b?))?.filter(|dim| dim.get().is_some() || dim.is_named())
    };
    let full: Dims = (0..rank).map(broadcast).collect::<Option<Vec<Dim>>>()?.into();
    operands.iter().zip(&all).find(|(_, dims)| **dims == full).map(|(operand, _)| *operand)
}

/// Whether two shapes broadcast, aligned at the last dimension, as far as is known.
fn broadcasts(one: &Dims, other: &Dims) -> bool {
    let is_one = |dim: Dim| dim == 1;
    one.iter().rev().zip(other.iter().rev()).all(|(a, b)| a.agrees(*b) || is_one(*a) || is_one(*b))
}
