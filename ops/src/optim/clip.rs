//! Clipping of gradients.

use std::panic::Location;

use autobwd::{Expr, New, Result, emit};

use super::{
    Optimizer, hyperparameters,
    state::{cast, fit},
};
use crate::{
    Math,
    reduce::SquaredL2Norm,
    sum::Sum,
    update::{ClipByNorm, ClipGradient, ScaleGradient},
};

/// Clipping of gradients between the backward pass and the update. NaN stays NaN, and sparse
/// gradients stay sparse.
///
/// ```
/// # use autobwd::{Builder, DType, Executor, Scope};
/// # use autobwd_ops::{Init, Math};
/// use autobwd_ops::optim::{GradientClip, Optimizer, Sgd};
/// # let net = Builder::new();
/// # let w = net.parameter("w", DType::F32, &[1], |w| Init::Constant(30.0).emit(w, 0));
/// # let v = net.parameter("v", DType::F32, &[1], |v| Init::Constant(40.0).emit(v, 0));
/// // The gradients are 30 and 40: together they have norm 50.
/// let loss = (w.square() + v.square()).mean() * 0.5;
/// Sgd { rate: 1.0 }.clip(GradientClip::GlobalNorm(5.0)).minimize(&loss)?.complete()?;
/// # let mut scope = Scope::new();
/// # let mut executor = Executor::with_threads(1);
/// # executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
/// executor.run(&net.program()?, &mut scope, &[], &[])?;
/// assert_eq!((scope.get("w")?.item()?, scope.get("v")?.item()?), (27.0, 36.0));
/// # Ok::<(), autobwd::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum GradientClip {
    /// Limits every element to `[-limit, limit]`.
    Value(f32),
    /// Scales every gradient whose L2 norm is larger to this norm.
    Norm(f32),
    /// Scales all gradients by `max_norm / max(‖all‖, max_norm)`, where `‖all‖` is their [`global_norm`] (Pascanu et
    /// al., 2013).
    GlobalNorm(f32),
}

impl GradientClip {
    fn limit(self) -> f32 {
        let (GradientClip::Value(limit) | GradientClip::Norm(limit) | GradientClip::GlobalNorm(limit)) = self;
        limit
    }

    fn validate(self) -> Result<()> {
        hyperparameters::above_zero("clip", self.limit())
    }

    /// The clipped gradients of these pairs of parameter and gradient.
    ///
    /// # Errors
    /// A limit that is not a positive number.
    #[track_caller]
    pub fn apply(self, gradients: &[(Expr, Expr)]) -> Result<Vec<(Expr, Expr)>> {
        let at = Location::caller();
        self.validate().map_err(|e| e.at_call(at))?;
        let most = f64::from(self.limit());
        let mut clipped = vec![];
        let scale = match self {
            GradientClip::GlobalNorm(_) if !gradients.is_empty() => {
                Some(most / global_norm(gradients).clip(most, f64::INFINITY))
            }
            _ => None,
        };
        for (parameter, gradient) in gradients {
            let (x, is_sparse) = (gradient.into(), gradient.meta().rows.is_some());
            let gradient = match (self, &scale) {
                (GradientClip::Value(limit), _) if is_sparse => emit(ClipGradient { x, out: New, limit }).out,
                (GradientClip::Value(_), _) => gradient.clip(-most, most),
                (GradientClip::Norm(max_norm), _) => emit(ClipByNorm { x, out: New, max_norm }).out,
                (GradientClip::GlobalNorm(_), Some(scale)) => {
                    let factor = &fit(scale, gradient);
                    match is_sparse {
                        true => emit(ScaleGradient { x, factor: factor.into(), out: New }).out,
                        false => gradient * factor,
                    }
                }
                (GradientClip::GlobalNorm(_), None) => gradient.clone(),
            };
            clipped.push((parameter.clone(), gradient));
        }
        Ok(clipped)
    }
}

/// The L2 norm of all gradients of these pairs together, `√Σ‖g‖²`, of shape `[1]` and the dtype of the first. Fails
/// without gradients.
#[track_caller]
pub fn global_norm(gradients: &[(Expr, Expr)]) -> Expr {
    let mut squares = vec![];
    for (_, gradient) in gradients {
        let square = emit(SquaredL2Norm { x: gradient.into(), out: New }).out;
        squares.push(cast(&square, gradients[0].1.dtype()).into());
    }
    emit(Sum { x: squares, out: New }).out.sqrt()
}

/// An optimizer with clipped gradients; made by [`Optimizer::clip`].
#[derive(Clone, Debug)]
pub struct ClippedOptimizer<O> {
    /// The optimizer.
    pub optimizer: O,
    /// How gradients are clipped.
    pub clip: GradientClip,
}

impl<O: Optimizer> Optimizer for ClippedOptimizer<O> {
    fn inner(&self) -> Option<&dyn Optimizer> {
        Some(&self.optimizer)
    }

    fn learning_rate(&self) -> f32 {
        self.optimizer.learning_rate()
    }

    fn validate(&self) -> Result<()> {
        self.clip.validate()?;
        self.optimizer.validate()
    }

    #[track_caller]
    fn transform(&self, gradients: Vec<(Expr, Expr)>) -> Result<Vec<(Expr, Expr)>> {
        self.optimizer.transform(self.clip.apply(&gradients)?)
    }

    #[track_caller]
    fn update(&self, parameter: &Expr, gradient: &Expr, learning_rate: &Expr) -> Result<()> {
        self.optimizer.update(parameter, gradient, learning_rate)
    }
}
