//! Methods of builders and expressions for eager mode.

use std::panic::Location;
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use super::{
    engine::Engine,
    expr::ExprValue,
    value::{SourceValue, Value},
};
use crate::{Builder, Error, ErrorKind, Expr, Meta, Result, Tensor, tensor::ToF64, with_dtype};

impl Builder {
    /// A leaf: a value whose gradient is wanted. The name is for messages and programs.
    pub fn leaf(&self, name: &str, tensor: Tensor) -> Expr {
        let leaf = tensor.dtype().is_float();
        self.hold(Value::from(SourceValue::new(name.into(), tensor, leaf)))
    }

    /// A value without gradient.
    pub fn constant(&self, tensor: Tensor) -> Expr {
        self.hold(Value::from(SourceValue::new(String::new(), tensor, false)))
    }

    /// A value from elsewhere, such as another thread, with its history: the inverse of [`Expr::into_value`].
    pub fn hold(&self, value: Value) -> Expr {
        Expr::of_value(self, value)
    }

    /// Runs a function without recording its history: its values are constants.
    ///
    /// ```
    /// # use autobwd::Tensor;
    /// # use autobwd_ops::Math;
    /// # let tape = autobwd::eager();
    /// # let x = tape.leaf("x", Tensor::scalar(2.0)?);
    /// let y = tape.no_grad(|| x.square());
    /// assert!(x.requires_grad() && !y.requires_grad());
    /// # Ok::<(), autobwd::Error>(())
    /// ```
    pub fn no_grad<T>(&self, function: impl FnOnce() -> T) -> T {
        self.recording(false, function)
    }

    /// Runs a function with recording of history switched on or off.
    pub(crate) fn recording<T>(&self, on: bool, function: impl FnOnce() -> T) -> T {
        struct RestoreRecording<'a>(&'a dyn Engine, bool);
        impl Drop for RestoreRecording<'_> {
            fn drop(&mut self) {
                self.0.record(self.1);
            }
        }
        let _restore = self.engine().map(|engine| RestoreRecording(engine, engine.record(on)));
        function()
    }

    /// Switches the check of all values: the first operator that computes a NaN or an infinity, forward or backward,
    /// fails with the line of the forward operator.
    pub fn check_finite(&self, on: bool) {
        if let Some(engine) = self.engine() {
            engine.check_finite(on);
        }
    }

    /// The number of operators run so far, including operators of backward passes.
    pub fn operators_run(&self) -> u64 {
        self.engine().map_or(0, |engine| engine.operators_run())
    }

    /// The parameters created so far, in order.
    pub fn parameters(&self) -> Vec<Expr> {
        let program = self.snapshot();
        match self.is_eager() {
            true => program.parameters().filter_map(|var| Some(self.hold(self.value_of(var)?))).collect(),
            false => program.parameters().map(|var| Expr::of_var(self, var)).collect(),
        }
    }
}

/// The handle of a hook, with which it can be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HookId(u64);

impl Expr {
    /// The computed value.
    pub(crate) fn value(&self) -> Result<&Value> {
        self.check()?.eager_value().ok_or_else(|| {
            let text = format!("`{}` is a variable of a program, not an eager value", self.name());
            Error::new(ErrorKind::NoValue, text)
        })
    }

    fn engine(&self) -> Result<&dyn Engine> {
        self.builder().engine().ok_or_else(|| Error::internal("a value without engine"))
    }

    /// The value and its history without the builder, which can be sent to another thread ([`Builder::hold`]).
    ///
    /// # Errors
    /// The expression has failed, or is a variable of a program. This also holds for all methods below.
    pub fn into_value(self) -> Result<Value> {
        self.value().cloned()
    }

    /// A copy of the elements.
    ///
    /// # Errors
    /// It is a variable of a program; memory runs out.
    pub fn tensor(&self) -> Result<Tensor> {
        self.value()?.tensor()
    }

    /// The only element.
    ///
    /// # Errors
    /// It is a variable of a program; it has another number of elements.
    pub fn item(&self) -> Result<f64> {
        self.tensor()?.item()
    }

    /// Names it. In a program, the variable has this name from now on, whatever else the program contains: logs of
    /// two models can be compared. In eager mode, a `Queue` shows the name.
    ///
    /// ```
    /// # use autobwd::{Builder, DType};
    /// # use autobwd_ops::Math;
    /// let net = Builder::new();
    /// let x = net.input("x", DType::F32, &[-1, 4]);
    /// let loss = x.square().mean().named("loss");
    /// assert_eq!(loss.name(), "loss");
    /// assert!(net.program()?.to_string().contains("loss = mean("));
    /// # Ok::<(), autobwd::Error>(())
    /// ```
    ///
    /// Fails for a name in use, a variable that has a gradient already, and one that is not computed by an operator of
    /// the current block: inputs and parameters have names of their own, also those that an operator overwrites.
    #[must_use]
    #[track_caller]
    pub fn named(self, name: &str) -> Expr {
        let outcome = match self.held() {
            Ok(ExprValue::Value(value)) => {
                value.with_settings(|w| w.name = name.into());
                Ok(())
            }
            Ok(ExprValue::Var(var)) => {
                let block = self.builder().block();
                self.builder().replace(|program| program.rename(block, *var, name))
            }
            Err(_) => Ok(()),
        };
        match outcome {
            Ok(()) => self,
            Err(e) => self.builder().failed(e),
        }
    }

    /// Whether it has a gradient: it is a leaf or was computed from one.
    pub fn requires_grad(&self) -> bool {
        self.eager_value().is_some_and(Value::requires_grad)
    }

    /// Whether it is a leaf, which accumulates gradients.
    pub fn is_leaf(&self) -> bool {
        self.eager_value().is_some_and(Value::is_leaf)
    }

    /// The backward pass: accumulates the gradients of this value, which has one element, into all leaves it was
    /// computed from. `missing` explains why a leaf gets none.
    ///
    /// # Errors
    /// More or less than one element; a value without history; an operator without gradient on the way; a needed value
    /// that has been overwritten.
    #[track_caller]
    pub fn backward(&self) -> Result<()> {
        if self.check()?.dims().numel() != 1 {
            let text = format!(
                "{} of shape {} is not a loss: a loss has one element; take the mean, or use `backward_with` a seed",
                self.value()?,
                self.dims()
            );
            return Err(Error::new(ErrorKind::Shape, text));
        }
        let value = self.with_history()?;
        self.engine()?.backward(self.builder(), value, self.seed(None)?, Location::caller())
    }

    /// The value, if a backward pass from it reaches a leaf.
    pub(crate) fn with_history(&self) -> Result<&Value> {
        let value = self.value()?;
        let text = || format!("{value} has no history that leads to a leaf: `tape::missing` tells why");
        if value.requires_grad() { Ok(value) } else { Err(Error::new(ErrorKind::NoGradient, text())) }
    }

    /// The gradient with which the backward pass starts.
    pub(crate) fn seed(&self, given: Option<&Value>) -> Result<Value> {
        let meta = self.value()?.meta();
        match given {
            Some(seed) => {
                let own = meta.clone().in_slot("output");
                seed.meta().clone().in_slot("seed").same_as(&own)?;
                Ok(seed.clone())
            }
            None => Ok(SourceValue::new("1".into(), ones(meta)?, false).into()),
        }
    }

    /// The gradient that [`backward`](Expr::backward) has accumulated here.
    ///
    /// # Errors
    /// No gradient has reached it.
    pub fn gradient(&self) -> Result<Expr> {
        let value = self.value()?;
        let derivative = value.settings(|w| w.derivative.clone()).flatten();
        let text = || format!("no gradient has reached {value}: `tape::missing` tells why");
        derivative.map(|d| self.builder().hold(d)).ok_or_else(|| Error::new(ErrorKind::NoValue, text()))
    }

    /// Clears the gradient that [`backward`](Expr::backward) has accumulated here.
    pub fn zero_grad(&self) {
        self.eager_value().map(|value| value.settings(|w| w.derivative = None));
    }

    /// Lets [`backward`](Expr::backward) keep the gradient of this value as for a leaf.
    ///
    /// # Errors
    /// It has no gradient.
    pub fn retain_grad(&self) -> Result<()> {
        self.with_derivative()?.with_settings(|w| w.retain = true);
        Ok(())
    }

    /// Adds a function that reads, and may change, the gradient of this value when it is complete.
    ///
    /// ```
    /// # use autobwd::Tensor;
    /// # use autobwd_ops::Math;
    /// # let tape = autobwd::eager();
    /// let x = tape.leaf("x", Tensor::scalar(2.0)?);
    /// let z = x.square();
    /// z.hook(|derivative| derivative * 10.0)?;
    /// z.exp().backward()?;
    /// assert_eq!(x.gradient()?.item()?, 10.0 * 4.0 * 4.0_f64.exp());
    /// # Ok::<(), autobwd::Error>(())
    /// ```
    ///
    /// # Errors
    /// It has no gradient.
    pub fn hook(&self, hook: impl Fn(&Expr) -> Expr + Send + Sync + 'static) -> Result<HookId> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        self.with_derivative()?.with_settings(|w| w.hooks.push((id, Arc::new(hook))));
        Ok(HookId(id))
    }

    /// Removes a hook of this value.
    pub fn remove_hook(&self, hook: HookId) {
        self.eager_value().map(|value| value.settings(|w| w.hooks.retain(|(id, _)| *id != hook.0)));
    }

    fn with_derivative(&self) -> Result<&Value> {
        let value = self.value()?;
        let text = || format!("{value} has no gradient: no history leads from it to a leaf");
        if value.requires_grad() { Ok(value) } else { Err(Error::new(ErrorKind::NoGradient, text())) }
    }

    /// Overwrites a leaf or a constant.
    ///
    /// # Errors
    /// A computed value; another dtype or shape; a function is being traced, whose program would not contain the
    /// change.
    #[track_caller]
    pub fn set(&self, tensor: Tensor) -> Result<()> {
        let (value, meta) = (self.value()?, tensor.meta().in_slot("tensor"));
        if self.engine()?.is_traced() {
            let text = format!("{value} is set while a function is traced: use an operator such as `assign`");
            return Err(Error::new(ErrorKind::Program, text));
        }
        value.overwrite(&meta, tensor.into_memory()?, ("set", Location::caller()))
    }
}

/// The gradient of a value with respect to itself.
fn ones(meta: &Meta) -> Result<Tensor> {
    meta.float()?;
    let mut ones = Tensor::zeros(meta.dtype, &meta.dims.known().unwrap_or_default())?;
    with_dtype!(meta.dtype, T => ones.slice_mut()?.fill(T::nearest(1.0)));
    Ok(ones)
}
