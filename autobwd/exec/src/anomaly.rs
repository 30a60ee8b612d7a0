//! Anomaly detection: a check for NaN and infinities after every operator.

use std::fmt::Write as _;

use autobwd_core::{Error, ErrorKind, Result};

use crate::observer::{ObservedOp, Observer};

/// Refuses outputs that hold a NaN or an infinity.
pub(crate) struct FiniteCheck;

impl Observer for FiniteCheck {
    /// # Errors
    /// An output holds a NaN or an infinity.
    fn after(&self, op: &ObservedOp) -> Result<()> {
        for output in op.outputs().iter().filter(|output| output.meta().dtype.is_float()) {
            if !output.range()?.is_finite() {
                return Err(report(op, output.name())?);
            }
        }
        Ok(())
    }
}

fn report(op: &ObservedOp, culprit: &str) -> Result<Error> {
    let mut text = format!("`{culprit}` is not finite");
    if let Some(forward) = op.forward() {
        _ = write!(text, "; it belongs to the gradient of {forward}");
    }
    for (what, values) in [("reads", op.inputs()), ("writes", op.outputs())] {
        for value in values {
            let (slot, rows) = (value.slot(), if value.is_sparse() { "rows of " } else { "" });
            let (name, meta, range) = (value.name(), value.meta(), value.range()?);
            _ = write!(text, "\n  {what} {slot} = `{name}`: {rows}{meta}, {range}");
        }
    }
    Ok(Error::new(ErrorKind::NotFinite, text))
}
