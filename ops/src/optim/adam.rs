//! Adam, AdamW and LAMB.

use autobwd::{Arg, Expr, New, Result};

use super::{Optimizer, hyperparameters, state};
use crate::update::{AdamOp, AdamwOp, LambOp};

/// The state of Adam and its relatives for a parameter: both moments, and the powers of both decays.
#[track_caller]
fn moments(parameter: &Expr, [beta1, beta2]: [f32; 2]) -> [Expr; 4] {
    [
        state(parameter, "moment1", None, 0.0),
        state(parameter, "moment2", None, 0.0),
        state(parameter, "beta1_pow", Some(&[1]), beta1),
        state(parameter, "beta2_pow", Some(&[1]), beta2),
    ]
}

/// Adam (Kingma and Ba, 2015).
#[derive(Clone, Copy, Debug)]
pub struct Adam {
    /// Learning rate.
    pub rate: f32,
    /// Decay of the first moment, the mean of gradients.
    pub beta1: f32,
    /// Decay of the second moment, the mean of squared gradients.
    pub beta2: f32,
    /// Added to the denominator, so that it stays above 0.
    pub epsilon: f32,
    /// Whether rows that a sparse gradient does not hold are unchanged, including their moments.
    pub lazy: bool,
}

impl Adam {
    /// The paper's `beta1 = 0.9`, `beta2 = 0.999`, `epsilon = 1e-8`; not lazy.
    pub const fn new(rate: f32) -> Adam {
        Adam { rate, beta1: 0.9, beta2: 0.999, epsilon: 1e-8, lazy: false }
    }
}

impl Optimizer for Adam {
    fn learning_rate(&self) -> f32 {
        self.rate
    }

    fn validate(&self) -> Result<()> {
        hyperparameters::adam(self.rate, [self.beta1, self.beta2], self.epsilon)
    }

    #[track_caller]
    fn update(&self, parameter: &Expr, gradient: &Expr, learning_rate: &Expr) -> Result<()> {
        let [moment1, moment2, beta1_pow, beta2_pow] = moments(parameter, [self.beta1, self.beta2]);
        let op = AdamOp {
            param: parameter.into(),
            grad: gradient.into(),
            learning_rate: learning_rate.into(),
            moment1: Arg::from(&moment1),
            moment2: Arg::from(&moment2),
            beta1_pow: Arg::from(&beta1_pow),
            beta2_pow: Arg::from(&beta2_pow),
            skip_update: None,
            param_out: parameter.into(),
            moment1_out: moment1.into(),
            moment2_out: moment2.into(),
            beta1_pow_out: beta1_pow.into(),
            beta2_pow_out: beta2_pow.into(),
            beta1: self.beta1,
            beta2: self.beta2,
            epsilon: self.epsilon,
            lazy_mode: self.lazy,
        };
        autobwd::emit(op).param_out.check().map(drop)
    }
}

/// Adam with decoupled weight decay (Loshchilov and Hutter, 2019): a step of Adam after `w = (1 - rate · decay) · w`.
///
/// ```
/// # use autobwd::{Builder, DType, Executor, Scope};
/// # use autobwd_ops::{Init, Math};
/// use autobwd_ops::optim::{AdamW, Optimizer};
/// # let net = Builder::new();
/// # let w = net.parameter("w", DType::F32, &[2], |w| Init::Constant(3.0).emit(w, 0));
/// let loss = w.square().mean();
/// AdamW { decay: 0.1, ..AdamW::new(0.5) }.minimize(&loss)?.complete()?;
/// # let mut scope = Scope::new();
/// # let mut executor = Executor::with_threads(1);
/// # executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
/// executor.run(&net.program()?, &mut scope, &[], &[])?;
/// assert_eq!(scope.get("w")?.slice::<f32>()?, [3.0 * 0.95 - 0.5; 2]);
/// # Ok::<(), autobwd::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct AdamW {
    /// Learning rate.
    pub rate: f32,
    /// Decay of the first moment, the mean of gradients.
    pub beta1: f32,
    /// Decay of the second moment, the mean of squared gradients.
    pub beta2: f32,
    /// Added to the denominator, so that it stays above 0.
    pub epsilon: f32,
    /// Coefficient of the weight decay.
    pub decay: f32,
    /// Whether rows that a sparse gradient does not hold only decay, and their moments are unchanged.
    pub lazy: bool,
}

impl AdamW {
    /// The paper's `beta1 = 0.9`, `beta2 = 0.999`, `epsilon = 1e-8`, `decay = 0.01`; not lazy.
    pub const fn new(rate: f32) -> AdamW {
        AdamW { rate, beta1: 0.9, beta2: 0.999, epsilon: 1e-8, decay: 0.01, lazy: false }
    }
}

impl Optimizer for AdamW {
    fn learning_rate(&self) -> f32 {
        self.rate
    }

    fn validate(&self) -> Result<()> {
        hyperparameters::adam(self.rate, [self.beta1, self.beta2], self.epsilon)?;
        hyperparameters::at_least_zero("decay", self.decay)
    }

    #[track_caller]
    fn update(&self, parameter: &Expr, gradient: &Expr, learning_rate: &Expr) -> Result<()> {
        let [moment1, moment2, beta1_pow, beta2_pow] = moments(parameter, [self.beta1, self.beta2]);
        let op = AdamwOp {
            param: parameter.into(),
            grad: gradient.into(),
            learning_rate: learning_rate.into(),
            moment1: Arg::from(&moment1),
            moment2: Arg::from(&moment2),
            beta1_pow: Arg::from(&beta1_pow),
            beta2_pow: Arg::from(&beta2_pow),
            skip_update: None,
            beta1_tensor: None,
            beta2_tensor: None,
            epsilon_tensor: None,
            param_out: parameter.into(),
            moment1_out: moment1.into(),
            moment2_out: moment2.into(),
            beta1_pow_out: beta1_pow.into(),
            beta2_pow_out: beta2_pow.into(),
            beta1: self.beta1,
            beta2: self.beta2,
            epsilon: self.epsilon,
            lazy_mode: self.lazy,
            lr_ratio: 1.0,
            coeff: self.decay,
            with_decay: true,
        };
        autobwd::emit(op).param_out.check().map(drop)
    }
}

/// LAMB (You et al., 2020): the step of Adam with weight decay, scaled to the size of each parameter, for large batches.
#[derive(Clone, Copy, Debug)]
pub struct Lamb {
    /// Learning rate.
    pub rate: f32,
    /// Decay of the first moment, the mean of gradients.
    pub beta1: f32,
    /// Decay of the second moment, the mean of squared gradients.
    pub beta2: f32,
    /// Added to the denominator, so that it stays above 0.
    pub epsilon: f32,
    /// Coefficient of the weight decay; without it, steps are not scaled.
    pub decay: f32,
}

impl Lamb {
    /// The paper's `beta1 = 0.9`, `beta2 = 0.999`, `epsilon = 1e-6`, `decay = 0.01`.
    pub const fn new(rate: f32) -> Lamb {
        Lamb { rate, beta1: 0.9, beta2: 0.999, epsilon: 1e-6, decay: 0.01 }
    }
}

impl Optimizer for Lamb {
    fn learning_rate(&self) -> f32 {
        self.rate
    }

    fn validate(&self) -> Result<()> {
        hyperparameters::adam(self.rate, [self.beta1, self.beta2], self.epsilon)?;
        hyperparameters::at_least_zero("decay", self.decay)
    }

    #[track_caller]
    fn update(&self, parameter: &Expr, gradient: &Expr, learning_rate: &Expr) -> Result<()> {
        let [moment1, moment2, beta1_pow, beta2_pow] = moments(parameter, [self.beta1, self.beta2]);
        let op = LambOp {
            param: parameter.into(),
            grad: gradient.into(),
            learning_rate: learning_rate.into(),
            moment1: Arg::from(&moment1),
            moment2: Arg::from(&moment2),
            beta1_pow: Arg::from(&beta1_pow),
            beta2_pow: Arg::from(&beta2_pow),
            skip_update: None,
            param_out: parameter.into(),
            moment1_out: moment1.into(),
            moment2_out: moment2.into(),
            beta1_pow_out: beta1_pow.into(),
            beta2_pow_out: beta2_pow.into(),
            weight_decay: self.decay,
            beta1: self.beta1,
            beta2: self.beta2,
            epsilon: self.epsilon,
            always_adapt: false,
            step: New,
        };
        autobwd::emit(op).param_out.check().map(drop)
    }
}
