//! What shape rules of several operators check.

use crate::{Dims, Error, ErrorKind, Meta, Result};

/// That `dout` has the dtype of `x` and the result's dimensions.
///
/// # Errors
/// It has not.
pub fn check_grad(x: &Meta, dout: &Meta, dims: &Dims) -> Result<()> {
    dout.same_dtype(x)?;
    dout.require(dout.dims.agrees(dims), || format!("the shape of the forward result, {dims}, is needed"))
}

/// Gradients of a list of inputs have their shapes.
///
/// # Errors
/// There are not as many gradients as inputs.
pub fn like_each(x: &[Meta], dx: &mut [Option<Meta>]) -> Result<()> {
    same_count("X@GRAD", dx.len(), x.len())?;
    for (x, dx) in x.iter().zip(dx) {
        dx.iter_mut().for_each(|dx| dx.like(x));
    }
    Ok(())
}

/// That a slot holds as many variables as needed.
///
/// # Errors
/// It does not.
pub fn same_count(slot: &str, got: usize, needed: usize) -> Result<()> {
    if got == needed {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Slot, format!("`{slot}`: {needed} variables are needed, not {got}")))
}
