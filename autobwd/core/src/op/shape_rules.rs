//! Checks shared by shape rules of several operators.

use crate::{Dims, Error, ErrorKind, Meta, Result};

/// Checks that `dout` has the dtype of `x` and the result's dimensions.
///
/// # Errors
/// The check fails.
pub fn check_grad(x: &Meta, dout: &Meta, dims: &Dims) -> Result<()> {
    dout.same_dtype(x)?;
    dout.require(dout.dims.agrees(dims), || format!("the shape of the forward result, {dims}, is needed"))
}

/// Checks the number of variables in a slot.
///
/// # Errors
/// Another number.
pub fn same_count(slot: &str, got: usize, needed: usize) -> Result<()> {
    if got == needed {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Slot, format!("`{slot}`: {needed} variables are needed, not {got}")))
}
