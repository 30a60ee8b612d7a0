//! Parameter groups, weight decay and frozen parameters.

use std::fmt;

use autobwd::{Builder, DType, Error, ErrorKind, Expr, New, Result, emit};

use super::{Optimizer, hyperparameters};
use crate::{
    model::{matches, require_matches},
    sum::Sum,
};

/// An optimizer with L2 regularisation, `dw ← dw + decay · w`, after any clipping; made by [`Optimizer::weight_decay`].
/// Sparse gradients become dense: all rows decay.
#[derive(Clone, Debug)]
pub struct WeightDecay<O> {
    /// The optimizer.
    pub optimizer: O,
    /// Coefficient of the weight decay.
    pub decay: f32,
}

impl<O: Optimizer> Optimizer for WeightDecay<O> {
    fn inner(&self) -> Option<&dyn Optimizer> {
        Some(&self.optimizer)
    }

    fn learning_rate(&self) -> f32 {
        self.optimizer.learning_rate()
    }

    fn validate(&self) -> Result<()> {
        hyperparameters::at_least_zero("decay", self.decay)?;
        self.optimizer.validate()
    }

    #[track_caller]
    fn update(&self, parameter: &Expr, gradient: &Expr, learning_rate: &Expr) -> Result<()> {
        if self.decay == 0.0 {
            return self.optimizer.update(parameter, gradient, learning_rate);
        }
        let decay = parameter * f64::from(self.decay);
        let decayed = emit(Sum { x: vec![gradient.into(), decay.into()], out: New }).out;
        self.optimizer.update(parameter, &decayed, learning_rate)
    }
}

/// Optimizers for groups of parameters, chosen by name; made by [`Optimizer::group`].
///
/// All groups follow one learning rate, the rate of the optimizer for all other parameters: a group whose optimizer has
/// half that rate at the start has half of it always.
///
/// ```
/// # use autobwd::{Builder, DType, Executor, Scope};
/// # use autobwd_ops::{Init, Math, nn::Linear};
/// use autobwd_ops::optim::{AdamW, Optimizer};
/// # let net = Builder::new();
/// # let x = net.input("x", DType::F32, &[-1, 2]);
/// # let encoder = Linear::builder(&net, 2, 2).name("encoder.out").build();
/// # let head = Linear::builder(&net, 2, 2).name("head").build();
/// # let loss = head.forward(&encoder.forward(&x)).square().mean();
/// let optimizer = AdamW { decay: 0.1, ..AdamW::new(1e-3) };
/// optimizer
///     .group("*.b", AdamW { decay: 0.0, ..optimizer }) // no decay of biases
///     .group("encoder.*", AdamW { rate: 1e-4, ..optimizer }) // a tenth of the learning rate
///     .minimize(&loss)?
///     .complete()?;
/// # Ok::<(), autobwd::Error>(())
/// ```
pub struct ParameterGroups {
    others: Box<dyn Optimizer>,
    /// Pattern and optimizer of each group.
    groups: Vec<(String, Box<dyn Optimizer>)>,
}

impl fmt::Debug for ParameterGroups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let patterns: Vec<&str> = self.groups.iter().map(|(pattern, _)| pattern.as_str()).collect();
        f.debug_struct("ParameterGroups").field("patterns", &patterns).finish_non_exhaustive()
    }
}

impl ParameterGroups {
    pub(super) fn new(others: impl Optimizer + 'static) -> ParameterGroups {
        ParameterGroups { others: Box::new(others), groups: vec![] }
    }

    /// Adds a group: the parameters whose names match `pattern`, in which `*` stands for any text, and that are in no
    /// group before it.
    #[must_use]
    pub fn group(
        mut self,
        pattern: impl Into<String>,
        optimizer: impl Optimizer + 'static,
    ) -> ParameterGroups {
        self.groups.push((pattern.into(), Box::new(optimizer)));
        self
    }

    /// The number of the group of a parameter; the number of groups if it is in none.
    fn group_of(&self, parameter: &Expr) -> usize {
        let name = parameter.name();
        let found = self.groups.iter().position(|(pattern, _)| matches(pattern, &name));
        found.unwrap_or(self.groups.len())
    }

    fn optimizer(&self, group: usize) -> &dyn Optimizer {
        self.groups.get(group).map_or(&*self.others, |(_, optimizer)| &**optimizer)
    }
}

impl Optimizer for ParameterGroups {
    fn inner(&self) -> Option<&dyn Optimizer> {
        Some(&*self.others)
    }

    fn learning_rate(&self) -> f32 {
        self.others.learning_rate()
    }

    fn update_dtype(&self, parameter: &Expr) -> DType {
        self.optimizer(self.group_of(parameter)).update_dtype(parameter)
    }

    fn validate(&self) -> Result<()> {
        self.others.validate()?;
        for (pattern, optimizer) in &self.groups {
            optimizer.validate()?;
            if optimizer.schedule().is_some() {
                let text = format!(
                    "group `{pattern}` has a schedule of its own; give one to the optimizer of all groups instead"
                );
                return Err(Error::attr("schedule", text));
            }
            if optimizer.precision().is_some() {
                let text = format!(
                    "group `{pattern}` has a precision of its own; give one to the optimizer of all groups instead"
                );
                return Err(Error::attr("mixed_precision", text));
            }
            let (own, all) = (optimizer.learning_rate(), self.learning_rate());
            if own != all && all == 0.0 {
                let text = format!(
                    "the rate of group `{pattern}` is {own}, a multiple of the rate of the others, which is 0"
                );
                return Err(Error::attr("rate", text));
            }
            if !["", self.state_prefix()].contains(&optimizer.state_prefix()) {
                let text = format!(
                    "group `{pattern}` has a name of its own; name the optimizer of all groups instead"
                );
                return Err(Error::attr("name", text));
            }
        }
        Ok(())
    }

    /// Every group's optimizer transforms the gradients of the group: a clipped one clips by the norm of its group.
    #[track_caller]
    fn transform(&self, gradients: Vec<(Expr, Expr)>) -> Result<Vec<(Expr, Expr)>> {
        let groups: Vec<usize> = gradients.iter().map(|(parameter, _)| self.group_of(parameter)).collect();
        for (group, (pattern, _)) in self.groups.iter().enumerate() {
            if !groups.contains(&group) {
                let text = format!("no parameter that is trained is in the group `{pattern}`");
                return Err(Error::new(ErrorKind::UnknownVar, text));
            }
        }
        let mut transformed = gradients;
        for group in 0..=self.groups.len() {
            let places: Vec<usize> = (0..groups.len()).filter(|at| groups[*at] == group).collect();
            let own = places.iter().map(|at| transformed[*at].clone()).collect();
            for (at, pair) in places.iter().zip(self.optimizer(group).transform(own)?) {
                transformed[*at] = pair;
            }
        }
        Ok(transformed)
    }

    #[track_caller]
    fn update(&self, parameter: &Expr, gradient: &Expr, learning_rate: &Expr) -> Result<()> {
        let optimizer = self.optimizer(self.group_of(parameter));
        let (own, all) = (f64::from(optimizer.learning_rate()), f64::from(self.learning_rate()));
        if own == all {
            return optimizer.update(parameter, gradient, learning_rate);
        }
        optimizer.update(parameter, gradient, &(learning_rate * (own / all)))
    }
}

/// [Freezes](Expr::freeze) the parameters whose names match one of the patterns, in which `*` stands for any text:
/// optimizers that are called later do not train them, and no gradients are computed for them. Returns their names.
///
/// ```
/// # use autobwd::{Builder, DType};
/// # use autobwd_ops::{Math, nn::Linear, optim::{Optimizer, Sgd}};
/// use autobwd_ops::optim::freeze;
/// # let net = Builder::new();
/// # let x = net.input("x", DType::F32, &[-1, 2]);
/// let encoder = Linear::builder(&net, 2, 2).name("encoder").build();
/// let head = Linear::builder(&net, 2, 1).name("head").build();
/// let loss = head.forward(&encoder.forward(&x)).square().mean();
/// assert_eq!(freeze(&net, &["encoder.*"])?, ["encoder.w", "encoder.b"]);
/// let trained = Sgd { rate: 0.1 }.minimize(&loss)?.complete()?;
/// assert_eq!(trained.len(), 2);
/// # Ok::<(), autobwd::Error>(())
/// ```
///
/// # Errors
/// A pattern that no parameter matches: then none is frozen; a failed builder.
pub fn freeze(net: &Builder, patterns: &[&str]) -> Result<Vec<String>> {
    net.check()?;
    let (parameters, mut frozen) = (net.parameters(), vec![]);
    let names: Vec<String> = parameters.iter().map(Expr::name).collect();
    require_matches(patterns, &names)?;
    for (parameter, name) in parameters.into_iter().zip(names) {
        if patterns.iter().any(|pattern| matches(pattern, &name)) {
            drop(parameter.freeze());
            frozen.push(name);
        }
    }
    Ok(frozen)
}
