//! Optimizers: backward pass and parameter updates in one call, or in parts.
//!
//! [`Optimizer::minimize`] is [`compute_gradients`] and [`Optimizer::apply_gradients`]. [`GradientClip`], [`WeightDecay`] and
//! [`ParameterGroups`] go with every optimizer, [`freeze`] excludes parameters. [`Schedule`] and [`Plateau`] give the
//! learning rate of a step, and [`ScheduledOptimizer`] lets the program compute it; [`EarlyStopping`] ends a run.
//! [`MixedPrecision`] trains in 16 bits, with [`LossScaling`]. [`OptimizerSpec`] is an optimizer as text. [`Lbfgs`] runs a program by itself.

mod adam;
mod adaptive;
mod budget;
mod clip;
mod descent;
mod gradients;
mod groups;
mod hyperparameters;
mod lbfgs;
mod loss_scaling;
mod master_weights;
mod mixed_precision;
mod progress;
mod schedule;
mod scheduled;
mod spec;
mod state;

pub use adam::{Adam, AdamW, Lamb};
pub use adaptive::{Adagrad, RmsProp};
#[doc(inline)]
pub use autobwd::exec::LEARNING_RATE;
pub use budget::MemoryBudget;
pub use clip::{ClippedOptimizer, GradientClip, global_norm};
pub use descent::{Momentum, Sgd};
pub use gradients::{MinimizeResult, UntrainedParameter, compute_gradients};
pub use groups::{ParameterGroups, WeightDecay, freeze};
pub use lbfgs::Lbfgs;
pub use loss_scaling::LossScaling;
pub use master_weights::MasterWeights;
pub use mixed_precision::{MixedPrecision, MixedPrecisionOptimizer};
pub use progress::{EarlyStopping, Plateau};
pub use schedule::{Schedule, set_rate};
pub use scheduled::ScheduledOptimizer;
pub use spec::OptimizerSpec;
pub use state::NamedOptimizer;

use std::panic::Location;

use autobwd::{Backward, DType, Expr, Result, exec::MemoryUse};

use state::state;

/// Appends the training part of a model.
pub trait Optimizer {
    /// Appends the update of one parameter.
    ///
    /// # Errors
    /// Hyperparameters out of bounds.
    #[track_caller]
    fn update(&self, parameter: &Expr, gradient: &Expr, learning_rate: &Expr) -> Result<()>;

    /// The learning rate at the start.
    fn learning_rate(&self) -> f32;

    /// The optimizer that this one wraps: what this one does not say itself, that one says.
    fn inner(&self) -> Option<&dyn Optimizer> {
        None
    }

    /// The dtype of the learning rate that [`update`](Optimizer::update) gets for a parameter; by default, the dtype of
    /// the parameter.
    fn update_dtype(&self, parameter: &Expr) -> DType {
        self.inner().map_or_else(|| parameter.dtype(), |inner| inner.update_dtype(parameter))
    }

    /// Checks the hyperparameters, before anything is appended. By default, the learning rate is a finite number, not
    /// below 0.
    ///
    /// # Errors
    /// Hyperparameters out of bounds.
    fn validate(&self) -> Result<()> {
        match self.inner() {
            Some(inner) => inner.validate(),
            None => hyperparameters::at_least_zero("rate", self.learning_rate()),
        }
    }

    /// The schedule by which the program computes the learning rate of each step; by default, the rate stays until the
    /// variable is set.
    fn schedule(&self) -> Option<&Schedule> {
        self.inner()?.schedule()
    }

    /// The precision in which the model is trained; by default, the precision of the model as it is described.
    fn precision(&self) -> Option<&MixedPrecision> {
        self.inner()?.precision()
    }

    /// The prefix of the names of the learning rate and of all state: empty, or the [`name`](Optimizer::name) and a dot.
    fn state_prefix(&self) -> &str {
        self.inner().map_or("", |inner| inner.state_prefix())
    }

    /// The name of the learning rate, a variable of the program: [`LEARNING_RATE`] after the
    /// [prefix](Optimizer::state_prefix).
    fn rate_name(&self) -> String {
        format!("{}{LEARNING_RATE}", self.state_prefix())
    }

    /// This optimizer with a name, by which its learning rate and state are called: two optimizers of one program, or of
    /// two programs that share a scope, need different names.
    ///
    /// ```
    /// # use autobwd::{Builder, DType};
    /// # use autobwd_ops::{Init, Math};
    /// use autobwd_ops::optim::{Momentum, Optimizer};
    /// # let net = Builder::new();
    /// # let w = net.parameter("w", DType::F32, &[2], |w| Init::Constant(3.0).emit(w, 0));
    /// # let loss = w.square().mean();
    /// let optimizer = Momentum { rate: 0.1, momentum: 0.9, nesterov: false, lazy: false }.name("critic");
    /// assert_eq!(optimizer.rate_name(), "critic.learning_rate_0");
    /// optimizer.minimize(&loss)?.complete()?;
    /// assert!(net.expr("critic.w.velocity").check().is_ok());
    /// # Ok::<(), autobwd::Error>(())
    /// ```
    fn name(self, name: impl Into<String>) -> NamedOptimizer<Self>
    where
        Self: Sized,
    {
        NamedOptimizer::new(self, name.into())
    }

    /// Changes the gradients of pairs of parameter and gradient before the updates, for instance by [`GradientClip`]. Leaves them
    /// as they are by default.
    ///
    /// # Errors
    /// Hyperparameters out of bounds.
    #[track_caller]
    fn transform(&self, gradients: Vec<(Expr, Expr)>) -> Result<Vec<(Expr, Expr)>> {
        match self.inner() {
            Some(inner) => inner.transform(gradients),
            None => Ok(gradients),
        }
    }

    /// This optimizer with clipped gradients.
    fn clip(self, clip: GradientClip) -> ClippedOptimizer<Self>
    where
        Self: Sized,
    {
        ClippedOptimizer { optimizer: self, clip }
    }

    /// This optimizer with L2 regularisation: `dw ← dw + decay · w`. [`AdamW`] and [`Lamb`] have a decay of their own,
    /// which is not part of the gradient.
    fn weight_decay(self, decay: f32) -> WeightDecay<Self>
    where
        Self: Sized,
    {
        WeightDecay { optimizer: self, decay }
    }

    /// This optimizer with a float32 copy of each parameter of 16 bits, which it updates (`multi_precision` in the
    /// reference): small steps do not vanish in the parameter's rounding, and the state is float32.
    fn master_weights(self) -> MasterWeights<Self>
    where
        Self: Sized,
    {
        MasterWeights { optimizer: self }
    }

    /// This optimizer in [mixed precision](crate::mixed_precision): before the backward pass, `minimize` changes the
    /// model, so that it computes in float16 or bfloat16 where that is fast. Parameters, their gradients and the loss
    /// stay float32. With float16, the loss is [scaled](LossScaling).
    ///
    /// ```
    /// # use autobwd::{Builder, DType};
    /// # use autobwd_ops::{Math, nn::Linear};
    /// use autobwd_ops::optim::{Adam, Optimizer};
    /// # let net = Builder::new();
    /// # let x = net.input("x", DType::F32, &[-1, 8]);
    /// let scores = Linear::builder(&net, 8, 4).build().forward(&x);
    /// let loss = scores.mean_cross_entropy(&net.input("labels", DType::I64, &[-1, 1]));
    /// Adam::new(0.01).mixed_precision(DType::BF16).minimize(&loss)?.complete()?;
    /// let step = net.program()?.to_string();
    /// assert!(step.contains("linear_0.w.cast_bf16 = cast(X=linear_0.w, in_dtype=5, out_dtype=22)"));
    /// assert!(step.contains("linear_0.w@GRAD = cast(X=linear_0.w.cast_bf16@GRAD, in_dtype=22, out_dtype=5)"));
    /// # Ok::<(), autobwd::Error>(())
    /// ```
    fn mixed_precision(self, precision: impl Into<MixedPrecision>) -> MixedPrecisionOptimizer<Self>
    where
        Self: Sized,
    {
        MixedPrecisionOptimizer { optimizer: self, precision: precision.into() }
    }

    /// This optimizer for all parameters except those whose names match `pattern`, in which `*` stands for any text:
    /// these have the other optimizer.
    fn group(self, pattern: impl Into<String>, optimizer: impl Optimizer + 'static) -> ParameterGroups
    where
        Self: Sized + 'static,
    {
        ParameterGroups::new(self).group(pattern, optimizer)
    }

    /// Appends the backward pass of `loss` ([`append_backward`](autobwd::append_backward)) and the update of every parameter that has a gradient.
    /// Parameters without gradient are unchanged; the result names them.
    ///
    /// ```
    /// # use autobwd::{Builder, DType};
    /// # use autobwd_ops::{Init, Math, optim::{Optimizer, Sgd}};
    /// let net = Builder::new();
    /// let w = net.parameter("w", DType::F32, &[2], |w| Init::Constant(3.0).emit(w, 0));
    /// let b = net.parameter("b", DType::F32, &[2], |b| Init::Constant(0.0).emit(b, 0));
    /// let loss = (w.square() + b.detach()).mean();
    /// let updates = Sgd { rate: 0.1 }.minimize(&loss)?;
    /// assert_eq!(updates.trained[0].0.name(), "w");
    /// assert!(updates.untrained[0].reason().starts_with("`b` has no gradient: its path to `mean_0` ends at `assign_0`"));
    /// assert!(updates.complete().is_err()); // ordinary code: `minimize(&loss)?.complete()?`
    /// # Ok::<(), autobwd::Error>(())
    /// ```
    ///
    /// The learning rate is a variable of the program, `learning_rate_0` ([`rate_name`](Optimizer::rate_name)), of shape
    /// `[1]`: set it in the scope to change it while training. There is one for parameters of all dtypes.
    ///
    /// A program has one call of `minimize`, and each run of the program is a step. A second optimizer in a program, or
    /// in another program with the same scope, has a [`name`](Optimizer::name).
    ///
    /// In eager mode ([`autobwd::eager`]), this is one training step: it computes the gradients of this loss and
    /// overwrites the parameters now. The state of an optimizer for a parameter is found by name.
    ///
    /// # Errors
    /// As [`append_backward`](autobwd::append_backward) with all parameters; no parameter has a gradient;
    /// hyperparameters out of bounds; a program that has an optimizer of this name. The program and its startup program
    /// are then as they were.
    #[track_caller]
    fn minimize(&self, loss: &Expr) -> Result<MinimizeResult> {
        self.minimize_with(loss, &Backward::default())
    }

    /// As [`minimize`](Optimizer::minimize), for some parameters only, or with recomputation to save memory:
    ///
    /// ```
    /// # use autobwd::{Builder, DType};
    /// use autobwd::{Backward, backward::Recompute};
    /// # use autobwd_ops::{Init, Math};
    /// use autobwd_ops::optim::{Optimizer, Sgd};
    /// # let net = Builder::new();
    /// # let w = net.parameter("w", DType::F32, &[2], |w| Init::Constant(3.0).emit(w, 0));
    /// # let loss = w.tanh().exp().mean();
    /// let backward = Backward { recompute: Recompute::Named(&["exp_0"]), ..Backward::default() };
    /// Sgd { rate: 0.1 }.minimize_with(&loss, &backward)?.complete()?;
    /// assert!(net.program()?.to_string().contains("tanh_0.subprog_0 = tanh(X=w)"));
    /// # Ok::<(), autobwd::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`minimize`](Optimizer::minimize) and [`append_backward`](autobwd::append_backward).
    #[track_caller]
    fn minimize_with(&self, loss: &Expr, backward: &Backward<'_>) -> Result<MinimizeResult> {
        let (net, at) = (loss.builder(), Location::caller());
        let transaction = state::transaction(net);
        // Not in a closure, so that operators record the caller's line.
        let outcome =
            match state::require_new(net, self).and_then(|()| mixed_precision::start(self, loss, at)) {
                Ok(scaled) => compute_gradients(&scaled, backward),
                Err(e) => Err(e),
            };
        let outcome = match outcome {
            Ok(updates) => mixed_precision::finish(net, self, updates, at),
            Err(e) => Err(e),
        };
        state::settle(transaction, outcome, at)
    }

    /// As [`minimize_with`](Optimizer::minimize_with), and chooses what the backward pass recomputes, so that a step fits
    /// into a memory budget: of the choices that fit, the one that repeats the least work. Also returns the memory of the
    /// step.
    ///
    /// A larger budget never repeats more work, and no budget changes a bit of the results. The gradient of a parameter
    /// need not be kept until the end of the step: its update runs as soon as it is complete, unless the update depends
    /// on all gradients, as clipping by the global norm does.
    ///
    /// # Errors
    /// As [`minimize_with`](Optimizer::minimize_with); a budget that no choice meets: by how many bytes, and what takes
    /// most of them; checkpoints besides the budget; shapes that are known only at run time; eager mode. The program is
    /// then as it was.
    #[track_caller]
    fn minimize_within(
        &self,
        loss: &Expr,
        backward: &Backward<'_>,
        budget: &MemoryBudget,
    ) -> Result<(MinimizeResult, MemoryUse)> {
        let at = Location::caller();
        let (choice, memory) = budget::choose(self, loss, (backward, budget)).map_err(|e| e.at_call(at))?;
        let mut updates = budget::minimize(self, loss, backward, &choice)?;
        let mut cost = choice.cost;
        cost.arena_bytes = memory.arena;
        updates.recomputed.planned = Some(cost);
        Ok((updates, memory))
    }

    /// Appends the updates of parameters with these gradients, pairs of [`compute_gradients`], which may have been
    /// changed meanwhile:
    ///
    /// ```
    /// # use autobwd::{Backward, Builder, DType};
    /// # use autobwd_ops::{Init, Math};
    /// use autobwd_ops::optim::{GradientClip, Optimizer, Sgd, compute_gradients, global_norm};
    /// # let net = Builder::new();
    /// # let w = net.parameter("w", DType::F32, &[2], |w| Init::Constant(3.0).emit(w, 0));
    /// # let loss = w.square().mean();
    /// let gradients = compute_gradients(&loss, &Backward::default())?.complete()?;
    /// let norm = global_norm(&gradients); // to be fetched
    /// Sgd { rate: 0.1 }.apply_gradients(&GradientClip::Value(0.5).apply(&gradients)?)?;
    /// # net.program()?;
    /// # Ok::<(), autobwd::Error>(())
    /// ```
    ///
    /// # Errors
    /// Hyperparameters out of bounds; a program that has an optimizer of this name; [mixed
    /// precision](Optimizer::mixed_precision), which comes before the gradients. The program is then as it was.
    #[track_caller]
    fn apply_gradients(&self, gradients: &[(Expr, Expr)]) -> Result<()> {
        let Some((first, _)) = gradients.first() else { return Ok(()) };
        let (net, at) = (first.builder(), Location::caller());
        let transaction = state::transaction(net);
        let outcome = state::require_new(net, self)
            .and_then(|()| mixed_precision::refuse(self))
            .and_then(|()| state::append_updates(net, self, gradients, at));
        state::settle(transaction, outcome, at)
    }
}
