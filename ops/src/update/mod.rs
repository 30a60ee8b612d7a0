//! Parameter updates by optimizers.
//!
//! All work in place if a parameter and its output are one variable. They are steps of a training loop, not part of a
//! function, so they have no gradient. A sparse gradient means zeros in all other rows; where the update changes a
//! parameter even for zero gradients, `lazy_mode` skips these rows.

mod adam;
mod adaptive;
mod clip;
mod descent;
mod layerwise;

pub use adam::{AdamOp, AdamwOp};
pub use adaptive::{AdadeltaOp, AdagradOp, AdamaxOp, DecayedAdagradOp, RmspropOp};
pub use clip::{ClipByNorm, ClipGradient, ScaleGradient};
pub use descent::{MomentumOp, Regularization, SgdOp};
pub use layerwise::{LambOp, LarsMomentumOp};

use autobwd::{Buf, Meta, Result, tensor::InOut};

use crate::kernel_helpers::KernelFloat;

/// The only element of a slot.
pub(crate) fn one<T: KernelFloat>(x: &Buf<'_>) -> Result<T> {
    match x.slice()? {
        [x] => Ok(*x),
        _ => Err(x.wrong("one element is needed")),
    }
}

/// Multiplies a power by its base; returns the old power.
fn advance<T: KernelFloat>(pow: InOut<'_, T>, base: T) -> T {
    let pow = pow.copied();
    let before = pow[0];
    pow[0] = before * base;
    before
}

/// Checks that the slots have the shape and dtype of the parameter.
fn same_as_param<const N: usize>(param: &Meta, slots: [&Meta; N]) -> Result<()> {
    param.float()?;
    slots.into_iter().try_for_each(|slot| slot.same_as(param))
}

/// Checks that the slots have one element of the dtype of the parameter.
fn scalars_of_param<const N: usize>(param: &Meta, slots: [&Meta; N]) -> Result<()> {
    slots.into_iter().try_for_each(|slot| {
        slot.same_dtype(param)?;
        slot.one_element()
    })
}
