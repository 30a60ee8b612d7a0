//! Slices of a tensor.

use autobwd::{Expr, New, emit, operators::Slice};

/// One step of a sequence, whose first dimension is time; -1 is the last.
#[track_caller]
pub(crate) fn at(sequence: &Expr, step: i32) -> Expr {
    let end = if step < 0 { i32::MAX } else { step.saturating_add(1) };
    let (axes, decrease_axis) = (vec![0], vec![0]);
    let op =
        Slice { axes, starts: vec![step], ends: vec![end], decrease_axis, ..Slice::of(sequence.into(), New) };
    emit(op).out
}
