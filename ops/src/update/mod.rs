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
mod learning_rate;
mod loss_scaling;

pub use adam::{AdamOp, AdamwOp};
pub use adaptive::{AdadeltaOp, AdagradOp, AdamaxOp, DecayedAdagradOp, RmspropOp};
pub use clip::{ClipByNorm, ClipGradient, ScaleGradient};
pub use descent::{MomentumOp, Regularization, SgdOp};
pub use layerwise::{LambOp, LarsMomentumOp};
pub use learning_rate::Pow2DecayWithLinearWarmup;
pub use loss_scaling::{CheckFiniteAndUnscale, UpdateLossScaling};

use autobwd::{
    Buf, DType, Expr, Meta, New, Result, emit,
    tensor::{Bool, InOut},
};

use crate::{
    Math,
    kernel_helpers::KernelFloat,
    logic::Where,
    math::{all_sizes, in_dtype, like},
};

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

/// Checks that the slots have one element of the dtype of the parameter, or float32 if that has 16 bits.
fn scalars_of_param<const N: usize>(param: &Meta, slots: [&Meta; N]) -> Result<()> {
    slots.into_iter().try_for_each(|slot| {
        if slot.dtype != param.dtype.arithmetic() {
            slot.same_dtype(param)?;
        }
        slot.one_element()
    })
}

/// Checks the slot that says whether to leave everything as it is.
fn skip_rule(skip: &Option<Meta>) -> Result<()> {
    let Some(skip) = skip else { return Ok(()) };
    skip.require(skip.dtype == DType::Bool, || "bool is needed".into())?;
    skip.one_element()
}

/// Whether to leave everything as it is.
fn is_skipped(skip: &Option<Buf<'_>>) -> Result<bool> {
    match skip {
        Some(skip) => Ok(skip.slice::<Bool>()?.iter().any(|skip| skip.get())),
        None => Ok(false),
    }
}

/// A tensor of one element, in a shape that broadcasts with `with`, and in its dtype if it is a number.
fn number(x: &Expr, with: &Expr) -> Expr {
    let x = &if x.dtype().is_float() { in_dtype(x, with.dtype()) } else { x.clone() };
    let shape: &[i32] = if with.dims().is_empty() { &[] } else { &[1] };
    let fits = x.dims().len() == shape.len() && x.dims().iter().all(|dim| *dim == 1);
    if fits { x.clone() } else { x.reshape(shape) }
}

/// A power, multiplied by its base.
fn next_power(power: &Expr, base: &Expr) -> Expr {
    power * number(base, power)
}

/// The mean, in which older terms decay: `decay * mean + (1 - decay) * x`.
fn moving_mean(mean: &Expr, x: &Expr, decay: &Expr) -> Expr {
    mean * decay + x * (1.0 - decay)
}

/// `√Σ x²` over all elements.
fn norm(x: &Expr) -> Expr {
    x.square().sum(&[]).sqrt()
}

/// `ratio` where both norms are positive, else 1.
fn if_positive(norms: [&Expr; 2], ratio: &Expr) -> Expr {
    let [first, second] = norms.map(|norm| norm.greater_than(&like(norm, 0.0)));
    first.logical_and(&second).where_cond(ratio, &like(ratio, 1.0))
}

/// `before` if the only element of `skip` is true, else `after`.
fn unless(skip: &Option<Expr>, before: &Expr, after: Expr) -> Expr {
    let Some(skip) = skip else { return after };
    let condition = (&number(skip, before).expand_to(&all_sizes(before))).into();
    emit(Where { condition, x: before.into(), y: after.into(), out: New }).out
}
