//! Gradients of a loss with respect to parameters, and the parameters without gradient.

use std::fmt;

use autobwd::{
    Backward, Error, ErrorKind, Expr, Result, append_backward,
    backward::{MissingGradient, PathEnd, Recompute, RecomputeReport, StopReason},
    tape::{GradOptions, grad, missing},
};

/// Appends the backward pass of `loss` ([`append_backward`]), without updates: the first half of
/// [`Optimizer::minimize`](super::Optimizer::minimize). In eager mode, it computes the gradients now.
///
/// # Errors
/// As [`append_backward`] with all parameters; no parameter has a gradient.
#[track_caller]
pub fn compute_gradients(loss: &Expr, backward: &Backward<'_>) -> Result<MinimizeResult> {
    if loss.builder().is_eager() { derivatives(loss, backward) } else { append_gradients(loss, backward) }
}

/// The result of [`Optimizer::minimize`](super::Optimizer::minimize) and [`compute_gradients`]: every parameter is in one
/// of the two lists, except those that the caller excluded (no-grad set, `stop_gradient`).
#[must_use = "a parameter without gradient is not trained: `complete` refuses that, `untrained` holds them"]
#[derive(Clone, Debug)]
pub struct MinimizeResult {
    /// Parameters that are updated, with their gradients.
    pub trained: Vec<(Expr, Expr)>,
    /// Parameters without gradient.
    pub untrained: Vec<UntrainedParameter>,
    /// Places where part of a gradient ends ([`Gradients::partial`](autobwd::backward::Gradients::partial)); empty in
    /// eager mode.
    pub partial: Vec<PathEnd>,
    /// Operators that the backward pass recomputes; empty in eager mode.
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

/// Appends the backward pass of the loss; returns parameters with the variables of their gradients.
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
    Ok(MinimizeResult { trained, untrained, partial: found.partial, recomputed: found.recomputed })
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
    let recomputed = RecomputeReport::default();
    let mut updates = MinimizeResult { trained: vec![], untrained: vec![], partial: vec![], recomputed };
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
