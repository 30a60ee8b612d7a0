use std::{fmt, rc::Rc};

use super::{Builder, value::Value};
use crate::{DType, Dim, Dims, Error, Meta, Result, Var, VarDesc};

/// What a failed expression is called.
const FAILED: &str = "@FAILED@";
/// How many dimensions a failed expression passes for: more than layers look at.
const UNKNOWN_RANK: usize = 8;

/// What the slots of an operator hold that is handed to [`emit`](super::emit).
#[derive(Debug)]
pub enum Arg {
    /// A new variable, for an output.
    New,
    /// That variable.
    Is(Expr),
}
impl Arg {
    /// The variable that exists, to look at.
    #[inline]
    pub(super) fn existing(&self) -> Option<&Expr> {
        match self {
            Arg::Is(expr) => Some(expr),
            Arg::New => None,
        }
    }

    /// The variable that exists.
    #[inline]
    #[doc(hidden)]
    pub fn expr(self) -> Option<Expr> {
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

/// A variable of a program in the making, a value that was computed at once, or the failure of what should have become
/// one of these.
///
/// Operators, methods and layers return expressions without `Result`. One that cannot be built is a *failed* expression:
/// it holds the first error (operator, slots, shapes, line of the call), and so does whatever is built from it. The error
/// is reported where something leaves the model: [`Builder::program`] and all that takes its program, also if the failed
/// expression was dropped; in eager mode [`item`](Expr::item), [`tensor`](Expr::tensor), [`backward`](Expr::backward)
/// and all others that return a `Result`. [`check`](Expr::check) reports it earlier.
///
/// ```
/// # use autobwd::{Builder, DType};
/// # use autobwd_ops::Math;
/// let net = Builder::new();
/// let x = net.input("x", DType::F32, &[-1, 4]);
/// let w = net.input("w", DType::F32, &[3, 2]);
/// let h = (x.matmul(&w) + 1.0).relu();
/// let e = h.check().unwrap_err();
/// assert!(e.to_string().contains("operator `matmul_v2` (block 0, operator 0, added at "));
/// assert_eq!(net.program().unwrap_err().to_string(), e.to_string());
/// ```
#[derive(Clone)]
pub struct Expr(State);

#[derive(Clone)]
enum State {
    Built(Builder, Held),
    Failed(Rc<Failure>),
}

#[derive(Clone)]
pub(crate) enum Held {
    Var(Var),
    Value(Value),
}

/// Why an expression could not be built.
struct Failure {
    builder: Builder,
    error: Error,
}

// A builder and a value: failures take no room.
const _: () = assert!(size_of::<Expr>() == size_of::<Builder>() + size_of::<Held>());

impl Expr {
    /// The expression as messages name it: `` `x` ``, or `a constant`, which has no name.
    pub(crate) fn subject(&self) -> String {
        match self.held() {
            Ok(Held::Value(value)) => value.to_string(),
            Ok(Held::Var(_)) | Err(_) => format!("`{}`", self.name()),
        }
    }

    pub(crate) fn of_var(builder: &Builder, var: Var) -> Expr {
        Expr(State::Built(builder.clone(), Held::Var(var)))
    }

    #[inline]
    #[doc(hidden)]
    pub fn of_value(builder: &Builder, value: Value) -> Expr {
        Expr(State::Built(builder.clone(), Held::Value(value)))
    }

    /// A failed expression; its builder does not know of it yet.
    pub(super) fn of_error(builder: &Builder, error: Error) -> Expr {
        Expr(State::Failed(Rc::new(Failure { builder: builder.clone(), error })))
    }

    /// The variable or value.
    #[inline]
    pub(crate) fn held(&self) -> Result<&Held, &Error> {
        match &self.0 {
            State::Built(_, held) => Ok(held),
            State::Failed(failure) => Err(&failure.error),
        }
    }

    /// Why it could not be built, if it could not.
    pub(crate) fn error(&self) -> Option<&Error> {
        self.held().err()
    }

    /// The expression itself, unless it has failed: for whoever wants the error here, and not where the model is used.
    ///
    /// # Errors
    /// The first error among all that the expression is built from.
    pub fn check(&self) -> Result<&Expr> {
        match self.held() {
            Ok(_) => Ok(self),
            Err(e) => Err(e.clone()),
        }
    }

    /// The value that was computed, if it was.
    #[inline]
    #[doc(hidden)]
    pub fn held_value(&self) -> Option<&Value> {
        match &self.0 {
            State::Built(_, Held::Value(value)) => Some(value),
            State::Built(_, Held::Var(_)) | State::Failed(_) => None,
        }
    }

    /// What it belongs to. A failed expression belongs to the builder that it was to be built by; to one of its own, if
    /// nothing says which that is.
    #[inline]
    pub fn builder(&self) -> &Builder {
        match &self.0 {
            State::Built(builder, _) => builder,
            State::Failed(failure) => &failure.builder,
        }
    }

    /// The variable; `@EMPTY@` for a value, or a failed expression, which is none.
    pub fn var(&self) -> Var {
        match self.held() {
            Ok(Held::Var(var)) => *var,
            Ok(Held::Value(_)) | Err(_) => Var::EMPTY,
        }
    }

    /// Whether both are the same variable of the same program, or the same value. A failed expression is its copies alone.
    pub fn is(&self, other: &Expr) -> bool {
        match (&self.0, &other.0) {
            (State::Built(one, Held::Var(a)), State::Built(two, Held::Var(b))) => a == b && one.is(two),
            (State::Built(_, Held::Value(a)), State::Built(_, Held::Value(b))) => a.same(b),
            (State::Failed(a), State::Failed(b)) => Rc::ptr_eq(a, b),
            _ => false,
        }
    }

    /// The name of the variable; of a value, how it came about. A failed expression is called `@FAILED@`, which no
    /// variable is.
    pub fn name(&self) -> String {
        match self.held() {
            Ok(Held::Var(var)) => self.builder().snapshot().name(*var).to_string(),
            Ok(Held::Value(value)) => value.name(),
            Err(_) => FAILED.into(),
        }
    }

    /// Dtype and dimensions, −1 where unknown, as seen from the block that operators go to.
    ///
    /// Of a failed expression nothing is known: it passes for float32 with 8 unknown dimensions, so that a layer which
    /// looks at its input's dimensions needs no case for it. Whatever is computed from that placeholder fails as soon as
    /// an operator meets the expression itself. What acts on dimensions without such an operator begins with a
    /// [`check`](Expr::check).
    pub fn meta(&self) -> Meta {
        match self.held() {
            // Every variable is declared when it is made; only `Builder::edit` can take that away.
            Ok(Held::Var(var)) => {
                let builder = self.builder();
                let known = builder.snapshot().lookup(builder.block(), *var).map(VarDesc::meta);
                known.unwrap_or_else(|| Meta::new(DType::F32, []))
            }
            Ok(Held::Value(value)) => value.meta().clone(),
            Err(_) => Meta::new(DType::F32, [Dim::UNKNOWN; UNKNOWN_RANK].into_iter().collect::<Dims>()),
        }
    }

    /// Element type; of a failed expression that of [`meta`](Expr::meta).
    #[inline]
    pub fn dtype(&self) -> DType {
        match self.held_value() {
            Some(value) => value.meta().dtype,
            None => self.meta().dtype,
        }
    }

    /// A number as the attributes of an operator on this expression hold it: that of a float32 expression has single
    /// precision, all others are exact.
    #[inline]
    pub fn literal(&self, number: f64) -> f64 {
        if self.dtype() == DType::F32 { f64::from(number as f32) } else { number }
    }

    /// Dimensions, −1 where unknown; of a failed expression those of [`meta`](Expr::meta).
    pub fn dims(&self) -> Dims {
        self.meta().dims
    }

    /// A value as a constant, to this handle.
    pub(crate) fn constant(self) -> Expr {
        match self.0 {
            State::Built(builder, Held::Value(value)) => {
                Expr(State::Built(builder, Held::Value(value.constant())))
            }
            other => Expr(other),
        }
    }

    /// Excludes a parameter, an input or any other variable from differentiation, for all its uses: no gradient flows
    /// into it or through it ([`VarDesc::stop_gradient`]). What the expression stands for stays the same.
    ///
    /// Of eager values, the result is a constant; a parameter is a constant from then on to the builder, too, so that
    /// optimizers leave it alone. Values that were computed from it before keep their history.
    #[must_use]
    pub fn freeze(self) -> Expr {
        match self.held() {
            Ok(Held::Var(var)) => {
                let mut at = Some(self.builder().block());
                self.builder().change(|program| {
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
            Ok(Held::Value(value)) => {
                self.builder().freeze_value(value);
                self.constant()
            }
            Err(_) => self,
        }
    }
}
impl fmt::Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.error() {
            None => write!(f, "{}: {}", self.name(), self.meta()),
            Some(e) => fmt::Display::fmt(e, f),
        }
    }
}
impl fmt::Debug for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
