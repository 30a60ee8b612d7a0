//! Optimizers: backward pass and parameter updates in one call, or in parts.
//!
//! [`Optimizer::minimize`] is [`compute_gradients`] and [`Optimizer::apply_gradients`]. [`GradientClip`], [`WeightDecay`] and
//! [`ParameterGroups`] go with every optimizer, [`freeze`] excludes parameters. [`Schedule`] and [`Plateau`] give the
//! learning rate of a step; [`EarlyStopping`] ends a run. [`Lbfgs`] runs a program by itself.

mod adam;
mod adaptive;
mod clip;
mod descent;
mod groups;
mod lbfgs;
mod progress;
mod schedule;

pub use adam::{Adam, AdamW, Lamb};
pub use adaptive::{Adagrad, RmsProp};
pub use clip::{ClippedOptimizer, GradientClip, global_norm};
pub use descent::{Momentum, Sgd};
pub use groups::{ParameterGroups, WeightDecay, freeze};
pub use lbfgs::Lbfgs;
pub use progress::{EarlyStopping, Plateau};
pub use schedule::{Schedule, set_rate};

use std::fmt;

use autobwd::{
    Backward, Builder, DType, Error, ErrorKind, Expr, Result, Tensor, append_backward,
    backward::{MissingGradient, PathEnd, Recompute, RecomputeReport, StopReason},
    tape::{GradOptions, grad, missing},
};

use crate::Init;

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

    /// Changes the gradients of pairs of parameter and gradient before the updates, for instance by [`GradientClip`]. Leaves them
    /// as they are by default.
    ///
    /// # Errors
    /// Hyperparameters out of bounds.
    #[track_caller]
    fn transform(&self, gradients: Vec<(Expr, Expr)>) -> Result<Vec<(Expr, Expr)>> {
        Ok(gradients)
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

    /// This optimizer for all parameters except those whose names match `pattern`, in which `*` stands for any text:
    /// these have the other optimizer.
    fn group(self, pattern: impl Into<String>, optimizer: impl Optimizer + 'static) -> ParameterGroups
    where
        Self: Sized + 'static,
    {
        ParameterGroups::new(self).group(pattern, optimizer)
    }

    /// Appends the backward part of `loss` ([`append_backward`]) and the update of every parameter that has a gradient.
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
    /// The learning rate is a variable of the program, `learning_rate_0`, of shape `[1]`: set it in the scope to change
    /// it while training.
    ///
    /// In eager mode ([`autobwd::eager`]), this is one training step: it computes the gradients of this loss and
    /// overwrites the parameters now. The state of an optimizer for a parameter is found by name.
    ///
    /// # Errors
    /// As [`append_backward`] with all parameters; no parameter has a gradient; hyperparameters out of bounds.
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
    /// As [`minimize`](Optimizer::minimize) and [`append_backward`].
    #[track_caller]
    fn minimize_with(&self, loss: &Expr, backward: &Backward<'_>) -> Result<MinimizeResult> {
        let updates = compute_gradients(loss, backward)?;
        self.apply_gradients(&updates.trained)?;
        Ok(updates)
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
    /// Hyperparameters out of bounds.
    #[track_caller]
    fn apply_gradients(&self, gradients: &[(Expr, Expr)]) -> Result<()> {
        let Some((first, _)) = gradients.first() else { return Ok(()) };
        let net = first.builder();
        let gradients = gradients.to_vec();
        // In a closure, operators would not record the caller's line.
        let gradients = match net.is_eager() {
            true => net.no_grad(|| self.transform(gradients)),
            false => self.transform(gradients),
        }?;
        let mut rates: Vec<(DType, Expr)> = vec![];
        for (parameter, gradient) in &gradients {
            let dtype = parameter.dtype();
            let rate = match rates.iter().find(|(d, _)| *d == dtype) {
                Some((_, rate)) => rate.clone(),
                None => {
                    let rate = rate(net, dtype, self.learning_rate());
                    rates.push((dtype, rate.clone()));
                    rate
                }
            };
            net.no_grad(|| self.update(parameter, gradient, &rate))?;
        }
        Ok(())
    }
}

/// Appends the backward pass of `loss` ([`append_backward`]), without updates: the first half of
/// [`Optimizer::minimize`]. In eager mode, it computes the gradients now.
///
/// # Errors
/// As [`append_backward`] with all parameters; no parameter has a gradient.
#[track_caller]
pub fn compute_gradients(loss: &Expr, backward: &Backward<'_>) -> Result<MinimizeResult> {
    if loss.builder().is_eager() { derivatives(loss, backward) } else { append_gradients(loss, backward) }
}

/// The result of [`Optimizer::minimize`] and [`compute_gradients`]: every parameter is in one of the two lists, except those that the caller
/// excluded (no-grad set, `stop_gradient`).
#[must_use = "a parameter without gradient is not trained: `complete` refuses that, `untrained` holds them"]
#[derive(Clone, Debug)]
pub struct MinimizeResult {
    /// Parameters that are updated, with their gradients.
    pub trained: Vec<(Expr, Expr)>,
    /// Parameters without gradient.
    pub untrained: Vec<UntrainedParameter>,
    /// Operators that the backward part recomputes; empty in eager mode.
    pub recomputed: RecomputeReport,
}

impl MinimizeResult {
    /// Returns the parameters with their gradients.
    ///
    /// # Errors
    /// Some parameter has no gradient: the error says which and why. An expression has failed meanwhile.
    pub fn complete(self) -> Result<Vec<(Expr, Expr)>> {
        if let Some((parameter, _)) = self.trained.first() {
            parameter.builder().check()?;
        }
        if self.untrained.is_empty() {
            return Ok(self.trained);
        }
        Err(Error::new(
            ErrorKind::NoGradient,
            format!("not all parameters are trained\n{}", reasons(&self.untrained)),
        ))
    }
}

/// A parameter without gradient.
#[derive(Clone, Debug)]
pub struct UntrainedParameter {
    /// The parameter.
    pub parameter: Expr,
    why: UntrainedReason,
}

#[derive(Clone, Debug)]
enum UntrainedReason {
    Reported(String),
    /// Found in the history of this loss on request: rarely needed, and not cheap.
    History(Expr),
}

impl UntrainedParameter {
    /// The reason for the missing gradient, as a sentence.
    pub fn reason(&self) -> String {
        match &self.why {
            UntrainedReason::Reported(reason) => reason.clone(),
            UntrainedReason::History(loss) => {
                let name = self.parameter.name();
                let found = missing(&[loss], &self.parameter);
                let found = found.unwrap_or_else(|e| Some(e.to_string()));
                found.unwrap_or_else(|| format!("`{name}` had no gradient when its update was requested"))
            }
        }
    }
}
impl fmt::Display for UntrainedParameter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason())
    }
}

fn reasons(untrained: &[UntrainedParameter]) -> String {
    untrained.iter().map(UntrainedParameter::reason).collect::<Vec<_>>().join("\n")
}

fn nothing_trained(reasons: &str) -> Error {
    let why = if reasons.is_empty() { "there are no parameters" } else { reasons };
    Error::new(ErrorKind::NoGradient, format!("nothing is trained\n{why}"))
}

/// Appends the backward part of the loss; returns parameters with the variables of their gradients.
#[track_caller]
fn append_gradients(loss: &Expr, backward: &Backward<'_>) -> Result<MinimizeResult> {
    let net = loss.builder();
    // Not in a closure, so that operators record the caller's line.
    let mut program = net.program()?.clone();
    let found = append_backward(&mut program, &loss.name(), backward)?;
    if found.pairs.is_empty() {
        let reasons: Vec<_> = found.missing.iter().map(ToString::to_string).collect();
        return Err(nothing_trained(&reasons.join("\n")));
    }
    let name = |v| program.name(v).to_string();
    let names: Vec<_> = found.pairs.iter().map(|(p, g)| (name(*p), name(*g))).collect();
    net.set_program(program);
    let trained = names.iter().map(|(p, g)| (net.expr(p), net.expr(g))).collect();
    let untrained = found.missing.iter().filter(|missing| !is_excluded(missing));
    let untrained = untrained
        .map(|missing| UntrainedParameter {
            parameter: net.expr(&missing.name),
            why: UntrainedReason::Reported(missing.to_string()),
        })
        .collect();
    Ok(MinimizeResult { trained, untrained, recomputed: found.recomputed })
}

/// Whether the caller wants a parameter to have no gradient.
fn is_excluded(missing: &MissingGradient) -> bool {
    let wish = |stop: &StopReason| matches!(stop, StopReason::NoGradSet | StopReason::StopGradient);
    matches!(&missing.cut, PathEnd::Variable { name, stop, .. } if *name == missing.name && wish(stop))
}

/// Computes the gradients of an eager loss from its history; returns parameters with their gradients.
#[track_caller]
fn derivatives(loss: &Expr, backward: &Backward<'_>) -> Result<MinimizeResult> {
    let (net, refuse) = (loss.builder(), |text| Err(Error::new(ErrorKind::NoGradient, text)));
    if !matches!(backward.recompute, Recompute::None) {
        return refuse("checkpoints need a program: a tape keeps all values".into());
    }
    if loss.check()?.dims().numel() != 1 {
        return refuse(format!("a loss has one element, not shape {}; take the mean", loss.dims()));
    }
    // As in a program, unknown names are errors.
    backward.no_grad.iter().try_for_each(|name| net.expr(name).check().map(drop))?;
    let mut parameters: Vec<Expr> = match backward.parameters {
        Some(names) => names.iter().map(|name| net.expr(name)).collect(),
        None => net.parameters(),
    };
    parameters.iter().try_for_each(|parameter| parameter.check().map(drop))?;
    let excluded = |p: &Expr| backward.no_grad.contains(&p.name().as_str()) || !p.requires_grad();
    let required = backward.parameters.is_some() && !backward.allow_missing;
    if let Some(parameter) = parameters.iter().find(|p| required && excluded(p)) {
        return refuse(format!(
            "`{}` has no gradient: it is in the no-grad set, or a constant",
            parameter.name()
        ));
    }
    parameters.retain(|p| !excluded(p));
    let found = grad(&[loss], &parameters.iter().collect::<Vec<_>>(), &GradOptions::default())?;
    let mut updates =
        MinimizeResult { trained: vec![], untrained: vec![], recomputed: RecomputeReport::default() };
    for (parameter, gradient) in parameters.into_iter().zip(found) {
        match gradient {
            Some(gradient) => updates.trained.push((parameter, gradient)),
            None => updates
                .untrained
                .push(UntrainedParameter { parameter, why: UntrainedReason::History(loss.clone()) }),
        }
    }
    if updates.trained.is_empty() {
        return Err(nothing_trained(&reasons(&updates.untrained)));
    }
    if required && !updates.untrained.is_empty() {
        return refuse(reasons(&updates.untrained));
    }
    Ok(updates)
}

/// The learning rate: a variable that is kept, or, in eager mode, the value for this step.
#[track_caller]
fn rate(net: &Builder, dtype: DType, rate: f32) -> Expr {
    let init = |expr: &Expr| Init::Constant(rate.into()).emit(expr, 0);
    if !net.is_eager() {
        return net.persistable(&net.unique("learning_rate"), dtype, &[1], init);
    }
    match Tensor::zeros(dtype, &[1]) {
        Ok(zeros) => init(&net.constant(zeros)),
        Err(e) => net.failed(e),
    }
}

/// A state of an optimizer for a parameter, kept in the scope like the parameter.
fn state(parameter: &Expr, what: &str, dims: Option<&[usize]>, value: f32) -> Expr {
    let meta = parameter.meta();
    let own = meta.dims.known().unwrap_or_default();
    let name = format!("{}.{what}", parameter.name());
    if parameter.builder().is_eager() {
        let known = parameter.builder().expr(&name);
        if known.check().is_ok() {
            return known;
        }
    }
    let dims = dims.unwrap_or(&own);
    parameter.builder().persistable(&name, meta.dtype, dims, |s| Init::Constant(value.into()).emit(s, 0))
}
