//! Expressions: variables, eager values and failures.

use std::{fmt, rc::Rc};

use super::{Builder, value::Value};
use crate::{BlockId, DType, Dim, Dims, Error, Meta, Result, Var, VarDesc};

/// The name of a failed expression.
const FAILED: &str = "@FAILED@";
/// The rank reported for a failed expression: more than layers inspect.
const UNKNOWN_RANK: usize = 8;

/// An argument of an operator for [`emit`](super::emit).
#[derive(Debug)]
pub enum Arg {
    /// A new variable, for an output.
    New,
    /// An existing variable or value.
    Existing(Expr),
}
impl Arg {
    /// The existing expression, by reference.
    #[inline]
    pub(super) fn existing(&self) -> Option<&Expr> {
        match self {
            Arg::Existing(expr) => Some(expr),
            Arg::New => None,
        }
    }

    /// The existing expression.
    #[inline]
    pub fn expr(self) -> Option<Expr> {
        match self {
            Arg::Existing(expr) => Some(expr),
            Arg::New => None,
        }
    }
}
impl From<&Expr> for Arg {
    #[inline]
    fn from(expr: &Expr) -> Arg {
        Arg::Existing(expr.clone())
    }
}
impl From<Expr> for Arg {
    #[inline]
    fn from(expr: Expr) -> Arg {
        Arg::Existing(expr)
    }
}

/// A variable of a program under construction, an eager value, or the failure to build one of these.
///
/// Operators, methods and layers return expressions without `Result`. One that cannot be built is a *failed*
/// expression: it holds the first error (operator, slots, shapes, line of the call), and so do all expressions built
/// from it. The error is reported where a result leaves the model: by [`Builder::program`] and everything that takes
/// its program, even if the failed expression was dropped; in eager mode by [`item`](Expr::item),
/// [`tensor`](Expr::tensor), [`backward`](Expr::backward) and all others that return a `Result`. [`check`](Expr::check)
/// reports it earlier.
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
pub struct Expr(ExprState);

#[derive(Clone)]
enum ExprState {
    Built(Builder, ExprValue),
    Failed(Rc<Failure>),
}

#[derive(Clone)]
pub(crate) enum ExprValue {
    Var(Var),
    Value(Value),
}

/// The error of a failed expression, with its builder.
struct Failure {
    builder: Builder,
    error: Error,
}

// A builder and a value: the failed state takes no extra space.
const _: () = assert!(size_of::<Expr>() == size_of::<(Builder, ExprValue)>());

impl Expr {
    /// The expression as messages name it: `` `x` ``, or `a constant`, which has no name.
    pub(crate) fn subject(&self) -> String {
        match self.held() {
            Ok(ExprValue::Value(value)) => value.to_string(),
            Ok(ExprValue::Var(_)) | Err(_) => format!("`{}`", self.name()),
        }
    }

    pub(crate) fn of_var(builder: &Builder, var: Var) -> Expr {
        Expr(ExprState::Built(builder.clone(), ExprValue::Var(var)))
    }

    #[inline]
    pub(crate) fn of_value(builder: &Builder, value: Value) -> Expr {
        Expr(ExprState::Built(builder.clone(), ExprValue::Value(value)))
    }

    /// A failed expression that its builder has not recorded yet.
    pub(super) fn of_error(builder: &Builder, error: Error) -> Expr {
        Expr(ExprState::Failed(Rc::new(Failure { builder: builder.clone(), error })))
    }

    /// The variable or value.
    #[inline]
    pub(crate) fn held(&self) -> Result<&ExprValue, &Error> {
        match &self.0 {
            ExprState::Built(_, held) => Ok(held),
            ExprState::Failed(failure) => Err(&failure.error),
        }
    }

    /// The error of a failed expression.
    pub(crate) fn error(&self) -> Option<&Error> {
        self.held().err()
    }

    /// The expression itself, unless it has failed: reports the error here instead of where the model is used.
    ///
    /// # Errors
    /// The first error among all expressions that it is built from.
    pub fn check(&self) -> Result<&Expr> {
        match self.held() {
            Ok(_) => Ok(self),
            Err(e) => Err(e.clone()),
        }
    }

    /// The value of an eager expression.
    #[inline]
    pub(crate) fn eager_value(&self) -> Option<&Value> {
        match &self.0 {
            ExprState::Built(_, ExprValue::Value(value)) => Some(value),
            ExprState::Built(_, ExprValue::Var(_)) | ExprState::Failed(_) => None,
        }
    }

    /// Its builder. For a failed expression: the builder it was meant for, or a fresh one.
    #[inline]
    pub fn builder(&self) -> &Builder {
        match &self.0 {
            ExprState::Built(builder, _) => builder,
            ExprState::Failed(failure) => &failure.builder,
        }
    }

    /// The variable; `@EMPTY@` for an eager value or a failed expression.
    pub fn var(&self) -> Var {
        match self.held() {
            Ok(ExprValue::Var(var)) => *var,
            Ok(ExprValue::Value(_)) | Err(_) => Var::EMPTY,
        }
    }

    /// Whether both are the same variable of the same program, or the same value. A failed expression equals only its
    /// clones.
    pub fn is(&self, other: &Expr) -> bool {
        match (&self.0, &other.0) {
            (ExprState::Built(one, ExprValue::Var(a)), ExprState::Built(two, ExprValue::Var(b))) => {
                a == b && one.is(two)
            }
            (ExprState::Built(_, ExprValue::Value(a)), ExprState::Built(_, ExprValue::Value(b))) => a.same(b),
            (ExprState::Failed(a), ExprState::Failed(b)) => Rc::ptr_eq(a, b),
            _ => false,
        }
    }

    /// The name of the variable; for a value, its name or operator. A failed expression is called `@FAILED@`, which is
    /// no name of a variable.
    pub fn name(&self) -> String {
        match self.held() {
            Ok(ExprValue::Var(var)) => self.builder().snapshot().name(*var).to_string(),
            Ok(ExprValue::Value(value)) => value.name(),
            Err(_) => FAILED.into(),
        }
    }

    /// Dtype and dimensions, −1 where unknown, as seen from the block to which operators are appended.
    ///
    /// A failed expression has a placeholder: float32 with 8 unknown dimensions, so that a layer which reads its
    /// input's dimensions needs no case for it. Results computed from the placeholder fail as soon as an operator
    /// receives the expression itself. Code that uses dimensions without such an operator starts with a
    /// [`check`](Expr::check).
    pub fn meta(&self) -> Meta {
        match self.held() {
            // Every variable is declared when it is created; only `Builder::edit` can remove the declaration.
            Ok(ExprValue::Var(var)) => {
                let builder = self.builder();
                let known = builder.snapshot().lookup(builder.block(), *var).map(VarDesc::meta);
                known.unwrap_or_else(|| Meta::new(DType::F32, []))
            }
            Ok(ExprValue::Value(value)) => value.meta().clone(),
            Err(_) => Meta::new(DType::F32, [Dim::UNKNOWN; UNKNOWN_RANK].into_iter().collect::<Dims>()),
        }
    }

    /// Element type; for a failed expression as in [`meta`](Expr::meta).
    #[inline]
    pub fn dtype(&self) -> DType {
        match self.eager_value() {
            Some(value) => value.meta().dtype,
            None => self.meta().dtype,
        }
    }

    /// A number as an attribute of an operator on this expression: rounded to single precision if operators compute in
    /// it, else exact.
    #[inline]
    pub fn literal(&self, number: f64) -> f64 {
        if self.dtype().arithmetic() == DType::F32 { f64::from(number as f32) } else { number }
    }

    /// Dimensions, −1 where unknown; for a failed expression as in [`meta`](Expr::meta).
    pub fn dims(&self) -> Dims {
        self.meta().dims
    }

    /// An eager value as a constant, for this handle.
    pub(crate) fn constant(self) -> Expr {
        match self.0 {
            ExprState::Built(builder, ExprValue::Value(value)) => {
                Expr(ExprState::Built(builder, ExprValue::Value(value.constant())))
            }
            other => Expr(other),
        }
    }

    /// Excludes a parameter, an input or any other variable from differentiation, in all its uses: no gradient flows
    /// into it or through it ([`VarDesc::stop_gradient`]). Its value stays the same.
    ///
    /// For an eager value, the result is a constant. A parameter also becomes a constant in the builder, so that
    /// optimizers skip it. Values that were computed from it before keep their history.
    #[must_use]
    pub fn freeze(self) -> Expr {
        match self.held() {
            Ok(ExprValue::Var(var)) => {
                let (builder, program) = (self.builder(), self.builder().snapshot());
                let parent = |id: &BlockId| program.block(*id)?.parent;
                let blocks = std::iter::successors(Some(builder.block()), parent);
                let declares = |id: &BlockId| program.block(*id).is_some_and(|b| b.vars.contains_key(var));
                let found = blocks.take(program.blocks().len()).find(declares);
                drop(program);
                found.into_iter().for_each(|block| builder.stop_gradient(block, *var));
                self
            }
            Ok(ExprValue::Value(value)) => {
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
