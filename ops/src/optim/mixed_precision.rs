//! Optimizers that train in mixed precision.

use std::panic::Location;

use autobwd::{Builder, DType, Error, ErrorKind, Expr, Result};

use super::{LossScaling, MinimizeResult, Optimizer, loss_scaling::skip_updates, state};
use crate::mixed_precision::{PrecisionLists, mixed_precision};

/// How an optimizer trains a model in mixed precision.
///
/// A dtype is one by itself, with the default lists; float16 with [`LossScaling::default`], bfloat16, whose range is that
/// of float32, without.
#[derive(Clone, Debug, PartialEq)]
pub struct MixedPrecision {
    /// Float16 or bfloat16.
    pub dtype: DType,
    /// Operators whose precision differs from the default.
    pub lists: PrecisionLists,
    /// The scaling of the loss.
    pub scaling: Option<LossScaling>,
}

impl From<DType> for MixedPrecision {
    fn from(dtype: DType) -> MixedPrecision {
        let scaling = (dtype == DType::F16).then(LossScaling::default);
        MixedPrecision { dtype, lists: PrecisionLists::default(), scaling }
    }
}

impl MixedPrecision {
    /// Changes the program of a builder, in which the loss stays float32.
    pub(super) fn apply(&self, net: &Builder, loss: &Expr) -> Result<()> {
        loss.check()?;
        if net.is_eager() {
            let text = "mixed precision is a pass over programs: in eager mode, cast the operands";
            return Err(Error::new(ErrorKind::Program, text));
        }
        let mut lists = self.lists.clone();
        lists.single_variables.push(loss.name());
        net.edit(|program| {
            *program = mixed_precision(program, self.dtype, &lists)?;
            Ok(())
        })
    }
}

/// An optimizer that trains in mixed precision; made by [`Optimizer::mixed_precision`].
#[derive(Clone, Debug)]
pub struct MixedPrecisionOptimizer<O> {
    /// The optimizer.
    pub optimizer: O,
    /// The precision of the model.
    pub precision: MixedPrecision,
}

impl<O: Optimizer> Optimizer for MixedPrecisionOptimizer<O> {
    fn inner(&self) -> Option<&dyn Optimizer> {
        Some(&self.optimizer)
    }

    fn learning_rate(&self) -> f32 {
        self.optimizer.learning_rate()
    }

    fn precision(&self) -> Option<&MixedPrecision> {
        Some(&self.precision)
    }

    fn validate(&self) -> Result<()> {
        if let Some(scaling) = &self.precision.scaling {
            scaling.validate()?;
        }
        self.optimizer.validate()
    }

    #[track_caller]
    fn update(&self, parameter: &Expr, gradient: &Expr, learning_rate: &Expr) -> Result<()> {
        self.optimizer.update(parameter, gradient, learning_rate)
    }
}

/// Changes the program of a loss to the optimizer's precision. Returns the loss from which the backward pass starts.
pub(super) fn start(
    optimizer: &(impl Optimizer + ?Sized),
    loss: &Expr,
    at: &'static Location<'static>,
) -> Result<Expr> {
    let Some(precision) = optimizer.precision() else { return Ok(loss.clone()) };
    let net = loss.builder();
    precision.apply(net, loss)?;
    let _site = net.called_at(at);
    let _scope = net.set_name_scope(optimizer.state_prefix().into());
    match &precision.scaling {
        Some(scaling) => scaling.scaled(net, loss).check().cloned(),
        None => Ok(loss.clone()),
    }
}

/// Appends the updates of parameters with gradients of what [`start`] returned. The result has the gradients of the loss.
pub(super) fn finish(
    net: &Builder,
    optimizer: &(impl Optimizer + ?Sized),
    updates: MinimizeResult,
    at: &'static Location<'static>,
) -> Result<MinimizeResult> {
    let scaling = optimizer.precision().and_then(|precision| precision.scaling);
    let Some(scaling) = scaling else {
        state::append_updates(net, optimizer, &updates.trained, at)?;
        return Ok(updates);
    };
    let _site = net.called_at(at);
    let _scope = net.set_name_scope(optimizer.state_prefix().into());
    let (trained, found) = scaling.unscale(net, &updates.trained)?;
    let first = net.program()?.root().ops.len();
    state::append_updates(net, optimizer, &trained, at)?;
    net.edit(|program| skip_updates(program, first, found.var()))?;
    scaling.update(net, &found)?;
    Ok(MinimizeResult { trained, ..updates })
}

/// Refuses an optimizer whose precision would come too late.
pub(super) fn refuse(optimizer: &(impl Optimizer + ?Sized)) -> Result<()> {
    if optimizer.precision().is_none() {
        return Ok(());
    }
    let text = "mixed precision changes the model before its backward pass: call `minimize` instead of \
                `apply_gradients`";
    Err(Error::new(ErrorKind::Program, text))
}
