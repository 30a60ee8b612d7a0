//! Gradient descent, with and without momentum.

use autobwd::{Arg, Expr, Result};

use super::{Optimizer, hyperparameters, state};
use crate::update::{MomentumOp, Regularization, SgdOp};

/// Stochastic gradient descent: `w = w - rate · dw`.
#[derive(Clone, Copy, Debug)]
pub struct Sgd {
    /// Learning rate.
    pub rate: f32,
}

impl Optimizer for Sgd {
    fn learning_rate(&self) -> f32 {
        self.rate
    }

    #[track_caller]
    fn update(&self, parameter: &Expr, gradient: &Expr, learning_rate: &Expr) -> Result<()> {
        let op = SgdOp {
            param: parameter.into(),
            grad: gradient.into(),
            learning_rate: learning_rate.into(),
            param_out: parameter.into(),
        };
        autobwd::emit(op).param_out.check().map(drop)
    }
}

/// SGD with momentum: `v = momentum · v + dw`, `w = w - rate · v`; with Nesterov momentum
/// `w = w - rate · (dw + momentum · v)` (Sutskever et al., 2013).
#[derive(Clone, Copy, Debug)]
pub struct Momentum {
    /// Learning rate.
    pub rate: f32,
    /// Decay of the velocity.
    pub momentum: f32,
    /// Whether to use Nesterov momentum.
    pub nesterov: bool,
    /// Whether rows that a sparse gradient does not hold are unchanged, including their velocity.
    pub lazy: bool,
}

impl Optimizer for Momentum {
    fn learning_rate(&self) -> f32 {
        self.rate
    }

    fn validate(&self) -> Result<()> {
        hyperparameters::at_least_zero("rate", self.rate)?;
        hyperparameters::at_least_zero("momentum", self.momentum)
    }

    #[track_caller]
    fn update(&self, parameter: &Expr, gradient: &Expr, learning_rate: &Expr) -> Result<()> {
        let velocity = state(parameter, "velocity", None, 0.0);
        let op = MomentumOp {
            param: parameter.into(),
            grad: gradient.into(),
            velocity: Arg::from(&velocity),
            learning_rate: learning_rate.into(),
            param_out: parameter.into(),
            velocity_out: velocity.into(),
            mu: self.momentum,
            use_nesterov: self.nesterov,
            regularization_method: Regularization::None,
            regularization_coeff: 0.0,
            rescale_grad: 1.0,
            lazy_mode: self.lazy,
        };
        autobwd::emit(op).param_out.check().map(drop)
    }
}
