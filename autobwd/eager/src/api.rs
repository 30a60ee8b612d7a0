//! What people call.

use std::{
    num::NonZero,
    panic::Location,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use super::queue::{Goal, Queue, Walk, ones};
use crate::{
    Builder, Error, ErrorKind, Expr, OpInfoMap, Result, Tensor,
    build::eager::{Eager, Function, Given, Value},
};

impl Builder {
    /// A builder whose expressions are computed at once, with as many threads as there are cores.
    pub fn eager() -> Builder {
        Builder::eager_with_threads(thread::available_parallelism().map_or(1, NonZero::get))
    }

    /// As [`eager`](Builder::eager), with that many threads, the caller's among them, but no more than 1,024. Results
    /// do not depend on it.
    pub fn eager_with_threads(threads: usize) -> Builder {
        Builder::of_eager(Eager::new(threads.max(1)), None)
    }

    /// As [`eager_with_threads`](Builder::eager_with_threads), with these operators instead of those that this binary links.
    pub fn eager_with_ops(ops: OpInfoMap, threads: usize) -> Builder {
        Builder::of_eager(Eager::new(threads.max(1)), Some(ops))
    }

    /// A value whose derivative is wanted; the name is for messages and programs.
    pub fn leaf(&self, name: &str, tensor: Tensor) -> Expr {
        let leaf = tensor.dtype().is_float();
        self.hold(Value::from(Given::new(name.into(), tensor, leaf)))
    }

    /// A value without derivative.
    pub fn constant(&self, tensor: Tensor) -> Expr {
        self.hold(Value::from(Given::new(String::new(), tensor, false)))
    }

    /// A value that came from elsewhere, another thread perhaps, with its history: [`Expr::into_value`] lets go of it.
    pub fn hold(&self, value: Value) -> Expr {
        Expr::of_value(self, value)
    }

    /// Runs a function whose values remember nothing: they are constants.
    ///
    /// ```
    /// # use autobwd::{Builder, Tensor};
    /// # use autobwd_ops::Math;
    /// # let tape = Builder::eager();
    /// # let x = tape.leaf("x", Tensor::scalar(2.0)?);
    /// let y = tape.no_grad(|| x.square());
    /// assert!(x.has_derivative() && !y.has_derivative());
    /// # Ok::<(), autobwd::Error>(())
    /// ```
    pub fn no_grad<T>(&self, function: impl FnOnce() -> T) -> T {
        self.recording(false, function)
    }

    fn recording<T>(&self, on: bool, function: impl FnOnce() -> T) -> T {
        struct Restore<'a>(&'a Eager, bool);
        impl Drop for Restore<'_> {
            fn drop(&mut self) {
                self.0.records.set(self.1);
            }
        }
        let _restore = self.eager_part().map(|eager| Restore(eager, eager.records.replace(on)));
        function()
    }

    /// Whether every value is looked at: the first operator that computes a NaN or an infinity, forward or backward, fails
    /// with the line of the forward operator.
    pub fn check_finite(&self, on: bool) {
        if let Some(eager) = self.eager_part() {
            eager.checks_finite.set(on);
        }
    }

    /// How many operators were run so far, derivatives included.
    pub fn operators_run(&self) -> u64 {
        self.eager_part().map_or(0, |eager| eager.runs.get())
    }

    /// The parameters that were made so far, in order.
    pub fn parameters(&self) -> Vec<Expr> {
        let vars: Vec<_> = self.snapshot().parameters().collect();
        let Some(eager) = self.eager_part() else {
            return vars.into_iter().map(|var| Expr::of_var(self, var)).collect();
        };
        let kept = eager.kept.borrow();
        vars.iter().filter_map(|var| Some(self.hold(kept.get(var)?.clone()))).collect()
    }
}

/// How [`grad`] is to go about it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Grad<'a> {
    /// By output: the derivative of whatever comes after it; ones where nothing is given.
    pub seeds: Option<&'a [&'a Expr]>,
    /// Whether the derivatives remember how they were computed, so that they have derivatives themselves.
    pub create_graph: bool,
}

/// Derivatives of the sum of all elements of `outputs` with respect to each of `inputs`: `None` where no path leads there,
/// of which [`missing`](super::missing) gives the reason.
/// Nothing is added to what leaves have got, and only operators on the way are visited.
///
/// # Errors
/// Variables of a program; no outputs; seeds that do not fit; an operator on the way without gradient; a value that is needed
/// and has been overwritten.
#[track_caller]
pub fn grad(outputs: &[&Expr], inputs: &[&Expr], how: &Grad<'_>) -> Result<Vec<Option<Expr>>> {
    let site = Location::caller();
    let values =
        |exprs: &[&Expr]| exprs.iter().map(|e| Ok(e.value()?.clone())).collect::<Result<Vec<Value>>>();
    let (roots, inputs) = (values(outputs)?, values(inputs)?);
    let seeds = how.seeds.map(values).transpose()?;
    let Some(builder) = outputs.first().map(|e| e.builder()) else {
        return Err(Error::new(ErrorKind::NoGradient, "derivatives of nothing"));
    };
    if let Some(seeds) = seeds.as_ref().filter(|seeds| seeds.len() != roots.len()) {
        let text = format!("{} seeds for {} outputs", seeds.len(), roots.len());
        return Err(Error::new(ErrorKind::NoGradient, text));
    }
    let goal = Goal::asked(&roots, &inputs);
    let goal = builder.recording(how.create_graph, || {
        let mut walk = Walk::new(builder, outputs[0].engine()?, goal, site);
        for (i, (root, expr)) in roots.iter().zip(outputs).enumerate() {
            walk.start(root, expr.seed(seeds.as_ref().map(|seeds| &seeds[i]))?)?;
        }
        walk.run(&mut |_| {})
    })?;
    Ok(goal.found().into_iter().map(|value| Some(builder.hold(value?))).collect())
}

/// Calls a function of your own; [`backward`](Expr::backward) goes through it by its [`Function::backward`].
///
/// ```
/// use autobwd::{Builder, Result, Tensor, tape::{Function, apply}};
/// use autobwd_ops as _;
///
/// /// `x · y`
/// struct Product;
/// impl Function for Product {
///     fn name(&self) -> &'static str {
///         "product"
///     }
///     fn forward(&self, inputs: &[Tensor]) -> Result<Tensor> {
///         Tensor::scalar(inputs[0].item()? * inputs[1].item()?)
///     }
///     fn backward(&self, inputs: &[Tensor], _: &Tensor, gradient: &Tensor) -> Result<Vec<Tensor>> {
///         let (x, y, d) = (inputs[0].item()?, inputs[1].item()?, gradient.item()?);
///         Ok(vec![Tensor::scalar(d * y)?, Tensor::scalar(d * x)?])
///     }
/// }
///
/// let tape = Builder::eager();
/// let x = tape.leaf("x", Tensor::scalar(2.0)?);
/// let y = apply(Product, &[&x, &apply(Product, &[&x, &x])]);
/// y.backward()?;
/// assert_eq!((y.item()?, x.gradient()?.item()?), (8.0, 12.0));
/// # Ok::<(), autobwd::Error>(())
/// ```
///
/// Fails for variables of a program and without inputs; if [`Function::forward`] does; for a function that is being
/// traced: a program has operators alone.
#[track_caller]
pub fn apply(function: impl Function, inputs: &[&Expr]) -> Expr {
    let site = Location::caller();
    let Some(first) = inputs.first() else {
        let text = format!("function `{}` is called without inputs", function.name());
        return Builder::new().failed(Error::new(ErrorKind::Slot, text));
    };
    let values = inputs.iter().map(|input| input.value()).collect::<Result<Vec<_>>>();
    let found = values.and_then(|values| first.engine()?.apply(Arc::new(function), &values, site));
    match found {
        Ok(value) => first.builder().hold(value),
        Err(e) => first.builder().failed(e),
    }
}

/// A hook that can be taken off again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HookId(u64);

impl Expr {
    /// The value that was computed.
    pub(super) fn value(&self) -> Result<&Value> {
        self.check()?.held_value().ok_or_else(|| {
            let text = format!("`{}` is a variable of a program, not a value that was computed", self.name());
            Error::new(ErrorKind::NoValue, text)
        })
    }

    fn engine(&self) -> Result<&Eager> {
        self.builder().eager_part().ok_or_else(|| Error::internal("a value without engine"))
    }

    /// Lets go of the builder: a value, and its history, can be sent to another thread ([`Builder::hold`]).
    ///
    /// # Errors
    /// It has failed, or is a variable of a program, as for all that follow here.
    pub fn into_value(self) -> Result<Value> {
        self.value().cloned()
    }

    /// A copy of the elements.
    ///
    /// # Errors
    /// It is a variable of a program; no memory.
    pub fn tensor(&self) -> Result<Tensor> {
        self.value()?.tensor()
    }

    /// The only element.
    ///
    /// # Errors
    /// It is a variable of a program; another number of elements.
    pub fn item(&self) -> Result<f64> {
        self.tensor()?.item()
    }

    /// Gives it a name, for people: a [`Queue`] shows it. Fails for a variable of a program, which has a name.
    #[must_use]
    #[track_caller]
    pub fn named(self, name: &str) -> Expr {
        match self.value() {
            Ok(value) => value.watch(|w| w.name = name.into()),
            Err(e) => return self.builder().failed(e),
        }
        self
    }

    /// Whether derivatives flow into it: it is a leaf or was computed from one.
    pub fn has_derivative(&self) -> bool {
        self.held_value().is_some_and(Value::has_derivative)
    }

    /// Whether it is a leaf: derivatives are added up here.
    pub fn is_leaf(&self) -> bool {
        self.held_value().is_some_and(Value::is_leaf)
    }

    /// Adds the derivative of this value, a single number, to all leaves that it was computed from. Why one is not among
    /// them, [`missing`](super::missing) tells.
    ///
    /// # Errors
    /// More or less than one element; a value without history; an operator on the way without gradient; a value that is
    /// needed and has been overwritten.
    #[track_caller]
    pub fn backward(&self) -> Result<()> {
        if self.check()?.dims().numel() != 1 {
            let text = format!(
                "{} of shape {} is no loss: a loss has one element; take the mean, or use `backward_with` a seed",
                self.value()?,
                self.dims()
            );
            return Err(Error::new(ErrorKind::Shape, text));
        }
        self.backward_with(None, &mut |_| {})
    }

    /// As [`backward`](Expr::backward), with the derivative of whatever comes after, ones when there is none, and with a look
    /// at the queue before every step.
    ///
    /// # Errors
    /// A seed of another dtype or shape, and those of `backward`.
    #[track_caller]
    pub fn backward_with(&self, seed: Option<&Expr>, look: &mut dyn FnMut(&Queue<'_>)) -> Result<()> {
        let (value, site) = (self.value()?, Location::caller());
        if !value.has_derivative() {
            let text = format!("{value} has no history that leads to a leaf");
            return Err(Error::new(ErrorKind::NoGradient, text));
        }
        let seed = self.seed(seed.map(Expr::value).transpose()?)?;
        let walked = self.builder().recording(false, || {
            let mut walk = Walk::new(self.builder(), self.engine()?, Goal::Leaves, site);
            walk.start(value, seed)?;
            walk.run(look)
        });
        walked.map(drop)
    }

    /// The derivative to start with.
    fn seed(&self, given: Option<&Value>) -> Result<Value> {
        let meta = self.value()?.meta();
        match given {
            Some(seed) => {
                let own = meta.clone().in_slot("output");
                seed.meta().clone().in_slot("seed").same_as(&own)?;
                Ok(seed.clone())
            }
            None => Ok(Value::from(Given::new("1".into(), ones(meta)?, false))),
        }
    }

    /// What [`backward`](Expr::backward) has added up here.
    ///
    /// # Errors
    /// Nothing has arrived.
    pub fn gradient(&self) -> Result<Expr> {
        let value = self.value()?;
        let derivative = value.watched(|w| w.derivative.clone()).flatten();
        let text = || format!("no derivative has arrived at {value}: `tape::missing` tells why");
        derivative.map(|d| self.builder().hold(d)).ok_or_else(|| Error::new(ErrorKind::NoValue, text()))
    }

    /// Forgets what [`backward`](Expr::backward) has added up here.
    pub fn zero_grad(&self) {
        self.held_value().map(|value| value.watched(|w| w.derivative = None));
    }

    /// Has [`backward`](Expr::backward) keep the derivative of this value as that of a leaf.
    ///
    /// # Errors
    /// It has no derivative.
    pub fn retain_grad(&self) -> Result<()> {
        self.with_derivative()?.watch(|w| w.retain = true);
        Ok(())
    }

    /// Has a function look at, and change, the derivative of this value when it is complete.
    ///
    /// ```
    /// # use autobwd::{Builder, Tensor};
    /// # use autobwd_ops::Math;
    /// # let tape = Builder::eager();
    /// let x = tape.leaf("x", Tensor::scalar(2.0)?);
    /// let z = x.square();
    /// z.hook(|derivative| derivative * 10.0)?;
    /// z.exp().backward()?;
    /// assert_eq!(x.gradient()?.item()?, 10.0 * 4.0 * 4.0_f64.exp());
    /// # Ok::<(), autobwd::Error>(())
    /// ```
    ///
    /// # Errors
    /// It has no derivative.
    pub fn hook(&self, hook: impl Fn(&Expr) -> Expr + Send + Sync + 'static) -> Result<HookId> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        self.with_derivative()?.watch(|w| w.hooks.push((id, Arc::new(hook))));
        Ok(HookId(id))
    }

    /// Takes a hook off this value.
    pub fn remove_hook(&self, hook: HookId) {
        self.held_value().map(|value| value.watched(|w| w.hooks.retain(|(id, _)| *id != hook.0)));
    }

    fn with_derivative(&self) -> Result<&Value> {
        let value = self.value()?;
        let text = || format!("{value} has no derivative: it was not computed from any leaf");
        if value.has_derivative() { Ok(value) } else { Err(Error::new(ErrorKind::NoGradient, text())) }
    }

    /// Overwrites a leaf or a constant.
    ///
    /// # Errors
    /// A value that was computed; another dtype or shape; a function is being [traced](super::trace), whose program would
    /// not know of it.
    #[track_caller]
    pub fn set(&self, tensor: Tensor) -> Result<()> {
        let (value, meta) = (self.value()?, tensor.meta().in_slot("tensor"));
        if self.engine()?.listener.borrow().is_some() {
            let text = format!("{value} is set while a function is traced: use an operator, `assign` say");
            return Err(Error::new(ErrorKind::Program, text));
        }
        value.overwrite(&meta, tensor.into_memory()?, ("set", Location::caller()))
    }
}
