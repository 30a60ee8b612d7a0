//! Adagrad and RMSProp.

use autobwd::{Arg, Expr, Result};

use super::{Optimizer, hyperparameters, state};
use crate::update::{AdagradOp, RmspropOp};

/// Adagrad (Duchi et al., 2011): `s = s + dw²`, `w = w - rate · dw / (√s + epsilon)`.
#[derive(Clone, Copy, Debug)]
pub struct Adagrad {
    /// Learning rate.
    pub rate: f32,
    /// Added to the denominator, so that it stays above 0.
    pub epsilon: f32,
    /// The sum of squares at the start.
    pub initial: f32,
}

impl Adagrad {
    /// `epsilon = 1e-6`; the sum starts at 0.
    pub const fn new(rate: f32) -> Adagrad {
        Adagrad { rate, epsilon: 1e-6, initial: 0.0 }
    }
}

impl Optimizer for Adagrad {
    fn learning_rate(&self) -> f32 {
        self.rate
    }

    fn validate(&self) -> Result<()> {
        hyperparameters::at_least_zero("rate", self.rate)?;
        hyperparameters::at_least_zero("epsilon", self.epsilon)?;
        hyperparameters::at_least_zero("initial", self.initial)
    }

    #[track_caller]
    fn update(&self, parameter: &Expr, gradient: &Expr, learning_rate: &Expr) -> Result<()> {
        let moment = state(parameter, "moment", None, self.initial);
        let op = AdagradOp {
            param: parameter.into(),
            grad: gradient.into(),
            moment: Arg::from(&moment),
            learning_rate: learning_rate.into(),
            param_out: parameter.into(),
            moment_out: moment.into(),
            epsilon: self.epsilon,
        };
        autobwd::emit(op).param_out.check().map(drop)
    }
}

/// RMSProp (Hinton, 2012): `s = decay · s + (1 - decay) · dw²`, `v = momentum · v + rate · dw / √(s + epsilon)`,
/// `w = w - v`.
#[derive(Clone, Copy, Debug)]
pub struct RmsProp {
    /// Learning rate.
    pub rate: f32,
    /// Decay of the mean of squared gradients.
    pub decay: f32,
    /// Decay of the velocity.
    pub momentum: f32,
    /// Added to the number below the root, so that it stays above 0.
    pub epsilon: f32,
    /// Whether the square of the gradients' mean is subtracted below the root.
    pub centered: bool,
}

impl RmsProp {
    /// `decay = 0.95`, `epsilon = 1e-6`, no momentum, not centered.
    pub const fn new(rate: f32) -> RmsProp {
        RmsProp { rate, decay: 0.95, momentum: 0.0, epsilon: 1e-6, centered: false }
    }
}

impl Optimizer for RmsProp {
    fn learning_rate(&self) -> f32 {
        self.rate
    }

    fn validate(&self) -> Result<()> {
        hyperparameters::at_least_zero("rate", self.rate)?;
        hyperparameters::below_one("decay", self.decay)?;
        hyperparameters::at_least_zero("momentum", self.momentum)?;
        hyperparameters::at_least_zero("epsilon", self.epsilon)
    }

    #[track_caller]
    fn update(&self, parameter: &Expr, gradient: &Expr, learning_rate: &Expr) -> Result<()> {
        let [square, moment, mean] =
            ["mean_square", "moment", "mean_grad"].map(|what| state(parameter, what, None, 0.0));
        let op = RmspropOp {
            param: parameter.into(),
            mean_square: Arg::from(&square),
            grad: gradient.into(),
            moment: Arg::from(&moment),
            learning_rate: learning_rate.into(),
            mean_grad: Some(Arg::from(&mean)),
            param_out: parameter.into(),
            moment_out: moment.into(),
            mean_square_out: square.into(),
            mean_grad_out: mean.into(),
            epsilon: self.epsilon,
            decay: self.decay,
            momentum: self.momentum,
            centered: self.centered,
        };
        autobwd::emit(op).param_out.check().map(drop)
    }
}
