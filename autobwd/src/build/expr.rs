use std::fmt;

use super::{Builder, eager::Value};
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
    pub fn dtype(&self) -> DType {
        self.meta().dtype
    }

    /// Dimensions, −1 where unknown.
    pub fn dims(&self) -> Dims {
        self.meta().dims
    }

    /// Lets no gradient flow into or through this variable; of a value, a constant with its elements.
    #[must_use]
    pub fn stop_gradient(self) -> Expr {
        match self.held {
            Held::Var(var) => {
                let mut at = Some(self.builder.block());
                self.builder.edit(|program| {
                    while let Some(block) = at.and_then(|id| program.block_mut(id)) {
                        if let Some(desc) = block.vars.get_mut(&var) {
                            desc.stop_gradient = true;
                            return;
                        }
                        at = block.parent;
                    }
                });
            }
            Held::Value(value) => {
                return Expr { held: Held::Value(value.constant()), builder: self.builder };
            }
        }
        self
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
