//! Learning rates and other state of optimizers: names, dtypes and shapes.

use std::panic::Location;

use autobwd::{Builder, DType, Error, ErrorKind, Expr, Result, Tensor, program::Transaction};

use super::{Optimizer, scheduled::set_rate};
use crate::{Init, Math};

/// An optimizer with a name; made by [`Optimizer::name`].
#[derive(Clone, Debug)]
pub struct NamedOptimizer<O> {
    optimizer: O,
    prefix: String,
}

impl<O> NamedOptimizer<O> {
    pub(super) fn new(optimizer: O, name: String) -> NamedOptimizer<O> {
        NamedOptimizer { optimizer, prefix: name + "." }
    }
}

impl<O: Optimizer> Optimizer for NamedOptimizer<O> {
    fn inner(&self) -> Option<&dyn Optimizer> {
        Some(&self.optimizer)
    }

    fn learning_rate(&self) -> f32 {
        self.optimizer.learning_rate()
    }

    fn state_prefix(&self) -> &str {
        &self.prefix
    }

    fn validate(&self) -> Result<()> {
        if self.prefix == "." {
            return Err(Error::attr("name", "the name of an optimizer is empty"));
        }
        self.optimizer.validate()
    }

    fn update(&self, parameter: &Expr, gradient: &Expr, learning_rate: &Expr) -> Result<()> {
        self.optimizer.update(parameter, gradient, learning_rate)
    }
}

/// A transaction of a program. Eager values are not taken back.
pub(super) fn transaction(net: &Builder) -> Option<Transaction> {
    (!net.is_eager()).then(|| net.transaction())
}

/// Ends a transaction by its outcome. An error names the line of the call.
pub(super) fn settle<T>(
    transaction: Option<Transaction>,
    outcome: Result<T>,
    at: &'static Location<'static>,
) -> Result<T> {
    match (transaction, &outcome) {
        (Some(transaction), Ok(_)) => transaction.commit(),
        (Some(transaction), Err(_)) => transaction.abort(),
        (None, _) => {}
    }
    outcome.map_err(|e| e.at_call(at))
}

/// Checks that the hyperparameters are valid and that the program has no optimizer of this name.
pub(super) fn require_new(net: &Builder, optimizer: &(impl Optimizer + ?Sized)) -> Result<()> {
    optimizer.validate()?;
    let rate = optimizer.rate_name();
    if net.is_eager() || net.program()?.expect_var(&rate).is_err() {
        return Ok(());
    }
    let text = format!(
        "the program has an optimizer with the learning rate `{rate}` already: updates are appended once, and each run \
         of the program is a step; a second optimizer needs a name of its own, such as `.name(\"critic\")`"
    );
    Err(Error::new(ErrorKind::Program, text))
}

/// Appends the updates of all parameters, with one learning rate for all dtypes.
pub(super) fn append_updates(
    net: &Builder,
    optimizer: &(impl Optimizer + ?Sized),
    gradients: &[(Expr, Expr)],
    at: &'static Location<'static>,
) -> Result<()> {
    let _site = net.called_at(at);
    let _scope = net.set_name_scope(optimizer.state_prefix().into());
    let gradients = net.no_grad(|| optimizer.transform(gradients.to_vec()))?;
    let dtypes = || gradients.iter().map(|(parameter, _)| optimizer.update_dtype(parameter));
    let Some(dtype) = dtypes().find(|dtype| *dtype == DType::F64).or_else(|| dtypes().next()) else {
        return Ok(());
    };
    let rate = learning_rate(net, &optimizer.rate_name(), dtype, optimizer.learning_rate());
    rate.check()?;
    if let Some(schedule) = optimizer.schedule() {
        net.no_grad(|| set_rate(net, &rate, schedule))?;
    }
    // By dtype, and whether it is for a parameter of rank 0.
    let mut rates: Vec<((DType, bool), Expr)> = vec![((dtype, false), rate.clone())];
    for (parameter, gradient) in &gradients {
        let key = (optimizer.update_dtype(parameter), parameter.dims().is_empty());
        let known = rates.iter().find(|(known, _)| *known == key).map(|(_, rate)| rate.clone());
        let rate = known.unwrap_or_else(|| {
            let fitted = net.no_grad(|| fit_to(&rate, key));
            rates.push((key, fitted.clone()));
            fitted
        });
        net.no_grad(|| optimizer.update(parameter, gradient, &rate))?;
    }
    Ok(())
}

/// The learning rate: a variable that is kept, or, in eager mode, the value for this step.
fn learning_rate(net: &Builder, name: &str, dtype: DType, rate: f32) -> Expr {
    let init = |expr: &Expr| Init::Constant(rate.into()).emit(expr, 0);
    if !net.is_eager() {
        return net.persistable(name, dtype, &[1], init);
    }
    match Tensor::zeros(dtype, &[1]) {
        Ok(zeros) => init(&net.constant(zeros)),
        Err(e) => net.failed(e),
    }
}

/// A number of shape `[1]` as an operand: with the dtype of the other operand, and of rank 0 if that is, so that the
/// result has the shape of the other.
#[track_caller]
pub(super) fn fit(number: &Expr, other: &Expr) -> Expr {
    fit_to(number, (other.dtype(), other.dims().is_empty()))
}

/// A number of shape `[1]` in a dtype, and of rank 0 if that is asked for.
#[track_caller]
fn fit_to(number: &Expr, (dtype, is_scalar): (DType, bool)) -> Expr {
    let number = cast(number, dtype);
    if is_scalar { number.reshape(&[]) } else { number }
}

#[track_caller]
pub(super) fn cast(number: &Expr, dtype: DType) -> Expr {
    if number.dtype() == dtype { number.clone() } else { number.cast(dtype) }
}

/// A state of an optimizer for a parameter, kept in the scope like the parameter. A state of other dimensions counts
/// steps: 16 bits would not hold a power of 0.999.
pub(super) fn state(parameter: &Expr, what: &str, dims: Option<&[usize]>, value: f32) -> Expr {
    let (meta, net) = (parameter.meta(), parameter.builder());
    let own = meta.dims.known().unwrap_or_default();
    let name = net.scoped(&format!("{}.{what}", parameter.name()));
    if net.is_eager() {
        let known = net.expr(&name);
        if known.check().is_ok() {
            return known;
        }
    }
    let dtype = if dims.is_some() { meta.dtype.arithmetic() } else { meta.dtype };
    let dims = dims.unwrap_or(&own);
    net.persistable(&name, dtype, dims, |s| Init::Constant(value.into()).emit(s, 0))
}
