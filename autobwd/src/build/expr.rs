use std::fmt;

use super::{Builder, arith::assign, eager::Value};
use crate::{DType, Dims, Meta, Var, VarDesc};

/// What the slots of an operator hold that is handed to [`emit`](super::emit).
pub enum Arg {
    /// A new variable, for an output.
    New,
    /// That variable.
    Is(Expr),
}
impl Arg {
    /// The variable that exists.
    #[inline]
    pub(crate) fn expr(self) -> Option<Expr> {
        match self {
            Arg::Is(expr) => Some(expr),
            Arg::New => None,
        }
    }
}
impl From<&Expr> for Arg {
    #[inline]
    fn from(expr: &Expr) -> Arg {
        Arg::Is(expr.clone())
    }
}
impl From<Expr> for Arg {
    #[inline]
    fn from(expr: Expr) -> Arg {
        Arg::Is(expr)
    }
}

/// A variable of a program in the making, or a value that was computed at once.
#[derive(Clone)]
pub struct Expr {
    pub(super) builder: Builder,
    pub(super) held: Held,
}

#[derive(Clone)]
pub(super) enum Held {
    Var(Var),
    Value(Value),
}

impl Expr {
    /// The expression as messages name it: `` `x` ``, or `a constant`, which has no name.
    pub(super) fn subject(&self) -> String {
        match &self.held {
            Held::Var(_) => format!("`{}`", self.name()),
            Held::Value(value) => value.to_string(),
        }
    }

    pub(crate) fn of_var(builder: &Builder, var: Var) -> Expr {
        Expr { builder: builder.clone(), held: Held::Var(var) }
    }

    #[inline]
    pub(crate) fn of_value(builder: &Builder, value: Value) -> Expr {
        Expr { builder: builder.clone(), held: Held::Value(value) }
    }

    /// The value that was computed, if it was.
    pub(crate) fn held_value(&self) -> Option<&Value> {
        match &self.held {
            Held::Value(value) => Some(value),
            Held::Var(_) => None,
        }
    }

    /// What it belongs to.
    pub fn builder(&self) -> &Builder {
        &self.builder
    }

    /// The variable; `@EMPTY@` for a value, which is none.
    pub fn var(&self) -> Var {
        match &self.held {
            Held::Var(var) => *var,
            Held::Value(_) => Var::EMPTY,
        }
    }

    /// Whether both are the same variable of the same program, or the same value.
    pub fn is(&self, other: &Expr) -> bool {
        match (&self.held, &other.held) {
            (Held::Var(a), Held::Var(b)) => a == b && self.builder.is(&other.builder),
            (Held::Value(a), Held::Value(b)) => a.same(b),
            _ => false,
        }
    }

    /// The name of the variable; of a value, how it came about.
    pub fn name(&self) -> String {
        match &self.held {
            Held::Var(var) => self.builder.program().name(*var).to_string(),
            Held::Value(value) => value.name(),
        }
    }

    /// Dtype and dimensions, −1 where unknown, as seen from the block that operators go to.
    pub fn meta(&self) -> Meta {
        match &self.held {
            // Every variable is declared when it is made; only `Builder::edit` can take that away.
            Held::Var(var) => {
                let known = self.builder.program().lookup(self.builder.block(), *var).map(VarDesc::meta);
                known.unwrap_or_else(|| Meta::new(DType::F32, []))
            }
            Held::Value(value) => value.meta().clone(),
        }
    }

    /// Element type.
    #[inline]
    pub fn dtype(&self) -> DType {
        match &self.held {
            Held::Var(_) => self.meta().dtype,
            Held::Value(value) => value.meta().dtype,
        }
    }

    /// A number as the attributes of an operator on this expression hold it: that of a float32 expression has single
    /// precision, all others are exact.
    #[inline]
    pub fn literal(&self, number: f64) -> f64 {
        if self.dtype() == DType::F32 { f64::from(number as f32) } else { number }
    }

    /// Dimensions, −1 where unknown.
    pub fn dims(&self) -> Dims {
        self.meta().dims
    }

    /// The same elements as a constant: no gradient flows through the result (PyTorch's `detach`). Other uses of the
    /// expression keep their gradients; [`freeze`](Expr::freeze) takes them away.
    ///
    /// A copy by operator `assign`: in a program its output is marked `stop_gradient`, and plans leave the copy out.
    ///
    /// ```
    /// # use autobwd::{Builder, Tensor};
    /// # use autobwd_ops::Math;
    /// let tape = Builder::eager();
    /// let x = tape.leaf("x", Tensor::scalar(3.0_f32)?);
    /// let squares = x.square()?;
    /// (&squares * &squares.clone().stop_gradient())?.backward()?;
    /// assert_eq!(x.gradient()?.item()?, 2.0 * 3.0 * 9.0);
    /// # Ok::<(), autobwd::Error>(())
    /// ```
    #[must_use]
    #[track_caller]
    pub fn stop_gradient(self) -> Expr {
        match self.held {
            Held::Var(var) => self.builder.constant_copy(var),
            Held::Value(_) => {
                let records = self.builder.eager_part().map(|eager| eager.records.replace(false));
                let copy = assign(&self);
                if let (Some(eager), Some(records)) = (self.builder.eager_part(), records) {
                    eager.records.set(records);
                }
                // Without memory or operator for a copy, it is the value itself.
                copy.unwrap_or(self).constant()
            }
        }
    }

    /// A value as a constant, to this handle.
    fn constant(self) -> Expr {
        match self.held {
            Held::Value(value) => Expr { held: Held::Value(value.constant()), builder: self.builder },
            Held::Var(_) => self,
        }
    }

    /// Excludes a parameter, an input or any other variable from differentiation, for all its uses: no gradient flows
    /// into it or through it ([`VarDesc::stop_gradient`]). What the expression stands for stays the same.
    ///
    /// Of eager values, the result is a constant; a parameter is a constant from then on to the builder, too, so that
    /// optimizers leave it alone. Values that were computed from it before keep their history.
    #[must_use]
    pub fn freeze(self) -> Expr {
        match &self.held {
            Held::Var(var) => {
                let mut at = Some(self.builder.block());
                self.builder.change(|program| {
                    while let Some(block) = at.and_then(|id| program.block_mut(id)) {
                        if let Some(desc) = block.vars.get_mut(var) {
                            desc.stop_gradient = true;
                            return;
                        }
                        at = block.parent;
                    }
                });
                self
            }
            Held::Value(value) => {
                if let Some(eager) = self.builder.eager_part() {
                    eager.freeze(value);
                }
                self.constant()
            }
        }
    }
}
impl fmt::Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name(), self.meta())
    }
}
impl fmt::Debug for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
