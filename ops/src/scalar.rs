//! Single numbers that remember how they were computed.

use std::{
    cmp::Ordering,
    fmt,
    ops::{Add, Div, Mul, Neg, Sub},
};

use autobwd::{
    Builder, Expr, Result, Tensor,
    tape::{Function, Queue, apply},
};

use crate::Math;

/// A number with its history. An operation that fails (no memory, say) makes a number that says why when it is looked at, so
/// that formulas read as they are written on paper.
///
/// ```
/// use autobwd::Builder;
/// use autobwd_ops::scalar::{Scalar, exp, log};
///
/// let tape = Builder::eager();
/// let (x, y) = (Scalar::leaf(&tape, "x", 2.0), Scalar::leaf(&tape, "y", 3.0));
/// let z = &x * &y;
/// let h = log(&z) + exp(&z);
/// h.backward()?;
/// assert_eq!(x.derivative()?, 3.0 * (1.0 / 6.0 + 6.0_f64.exp()));
/// assert!(x < y && h > 400.0);
/// # Ok::<(), autobwd::Error>(())
/// ```
#[derive(Clone)]
pub struct Scalar(Result<Expr>);

impl Scalar {
    /// A number whose derivative is wanted.
    pub fn leaf(tape: &Builder, name: &str, number: f64) -> Scalar {
        Scalar(Tensor::scalar(number).map(|number| tape.leaf(name, number)))
    }

    /// A number without derivative.
    pub fn constant(tape: &Builder, number: f64) -> Scalar {
        Scalar(Tensor::scalar(number).map(|number| tape.constant(number)))
    }

    /// A function of your own of numbers: its value, and, from the derivative of whatever comes after it, that with respect
    /// to each of the numbers.
    ///
    /// ```
    /// # use autobwd::Builder;
    /// use autobwd_ops::scalar::{Scalar, log};
    ///
    /// let tape = Builder::eager();
    /// let (x, y) = (Scalar::leaf(&tape, "x", 2.0), Scalar::leaf(&tape, "y", 3.0));
    /// let hypot = Scalar::function("hypot", &[&x, &y], |v| v[0].hypot(v[1]), |v, d| {
    ///     let length = v[0].hypot(v[1]);
    ///     vec![d * v[0] / length, d * v[1] / length]
    /// });
    /// log(&hypot).backward()?;
    /// assert!((x.derivative()? - 2.0 / 13.0).abs() < 1e-15);
    /// # Ok::<(), autobwd::Error>(())
    /// ```
    #[track_caller]
    pub fn function(
        name: &'static str,
        numbers: &[&Scalar],
        value: impl Fn(&[f64]) -> f64 + Send + Sync + 'static,
        derivatives: impl Fn(&[f64], f64) -> Vec<f64> + Send + Sync + 'static,
    ) -> Scalar {
        let exprs = numbers.iter().map(|number| number.expr()).collect::<Result<Vec<_>>>();
        Scalar(exprs.and_then(|exprs| apply(OfNumbers { name, value, derivatives }, &exprs)))
    }

    /// Gives it a name, for people.
    #[must_use]
    pub fn named(self, name: &str) -> Scalar {
        Scalar(self.0.and_then(|x| x.named(name)))
    }

    /// The number.
    ///
    /// # Errors
    /// An operation has failed.
    pub fn value(&self) -> Result<f64> {
        self.expr()?.item()
    }

    /// The expression that holds it.
    ///
    /// # Errors
    /// An operation has failed.
    pub fn expr(&self) -> Result<&Expr> {
        self.0.as_ref().map_err(Clone::clone)
    }

    /// Adds the derivative of this number to all leaves that it was computed from.
    ///
    /// # Errors
    /// Those of [`Expr::backward`]; an operation has failed.
    #[track_caller]
    pub fn backward(&self) -> Result<()> {
        self.expr()?.backward()
    }

    /// As [`backward`](Scalar::backward), with a look at the queue before every step.
    ///
    /// # Errors
    /// As there.
    #[track_caller]
    pub fn backward_steps(&self, mut look: impl FnMut(&Queue)) -> Result<()> {
        self.expr()?.backward_with(None, &mut look)
    }

    /// The derivative of this leaf.
    ///
    /// # Errors
    /// None has arrived; an operation has failed.
    pub fn derivative(&self) -> Result<f64> {
        self.expr()?.gradient()?.item()
    }

    #[track_caller]
    fn unary(&self, f: impl FnOnce(&Expr) -> Result<Expr>) -> Scalar {
        Scalar(self.expr().and_then(f))
    }

    #[track_caller]
    fn binary(&self, other: &Scalar, f: impl FnOnce(&Expr, &Expr) -> Result<Expr>) -> Scalar {
        Scalar(self.expr().and_then(|x| f(x, other.expr()?)))
    }

    /// A constant beside this number.
    fn beside(&self, number: f64) -> Scalar {
        Scalar(self.expr().and_then(|x| Ok(x.builder().constant(Tensor::scalar(number)?))))
    }
}

/// A function of numbers, as one of tensors.
struct OfNumbers<V, D> {
    name: &'static str,
    value: V,
    derivatives: D,
}
impl<V, D> Function for OfNumbers<V, D>
where
    V: Fn(&[f64]) -> f64 + Send + Sync + 'static,
    D: Fn(&[f64], f64) -> Vec<f64> + Send + Sync + 'static,
{
    fn name(&self) -> &'static str {
        self.name
    }

    fn forward(&self, inputs: &[Tensor]) -> Result<Tensor> {
        Tensor::scalar((self.value)(&numbers(inputs)?))
    }

    fn backward(&self, inputs: &[Tensor], _: &Tensor, gradient: &Tensor) -> Result<Vec<Tensor>> {
        let derivatives = (self.derivatives)(&numbers(inputs)?, gradient.item()?);
        derivatives.into_iter().map(Tensor::scalar).collect()
    }
}

fn numbers(inputs: &[Tensor]) -> Result<Vec<f64>> {
    inputs.iter().map(Tensor::item).collect()
}

/// `ln(x)`
#[track_caller]
pub fn log(x: &Scalar) -> Scalar {
    x.unary(Math::log)
}

/// `e ^ x`
#[track_caller]
pub fn exp(x: &Scalar) -> Scalar {
    x.unary(Math::exp)
}

/// `1 / (1 + exp(-x))`
#[track_caller]
pub fn sigmoid(x: &Scalar) -> Scalar {
    x.unary(Math::sigmoid)
}

/// `max(x, 0)`
#[track_caller]
pub fn relu(x: &Scalar) -> Scalar {
    x.unary(Math::relu)
}

macro_rules! operators {
    ($($tr:ident $f:ident),*) => {$(
        impl $tr<&Scalar> for &Scalar {
            type Output = Scalar;
            #[track_caller]
            fn $f(self, other: &Scalar) -> Scalar {
                self.binary(other, |x, y| $tr::$f(x, y))
            }
        }
        impl $tr<Scalar> for Scalar {
            type Output = Scalar;
            #[track_caller]
            fn $f(self, other: Scalar) -> Scalar {
                $tr::$f(&self, &other)
            }
        }
        impl $tr<&Scalar> for Scalar {
            type Output = Scalar;
            #[track_caller]
            fn $f(self, other: &Scalar) -> Scalar {
                $tr::$f(&self, other)
            }
        }
        impl $tr<Scalar> for &Scalar {
            type Output = Scalar;
            #[track_caller]
            fn $f(self, other: Scalar) -> Scalar {
                $tr::$f(self, &other)
            }
        }
        impl $tr<f64> for &Scalar {
            type Output = Scalar;
            #[track_caller]
            fn $f(self, other: f64) -> Scalar {
                $tr::$f(self, &self.beside(other))
            }
        }
        impl $tr<f64> for Scalar {
            type Output = Scalar;
            #[track_caller]
            fn $f(self, other: f64) -> Scalar {
                $tr::$f(&self, other)
            }
        }
        impl $tr<&Scalar> for f64 {
            type Output = Scalar;
            #[track_caller]
            fn $f(self, other: &Scalar) -> Scalar {
                $tr::$f(&other.beside(self), other)
            }
        }
        impl $tr<Scalar> for f64 {
            type Output = Scalar;
            #[track_caller]
            fn $f(self, other: Scalar) -> Scalar {
                $tr::$f(self, &other)
            }
        }
    )*};
}
operators!(Add add, Sub sub, Mul mul, Div div);

impl Neg for &Scalar {
    type Output = Scalar;
    #[track_caller]
    fn neg(self) -> Scalar {
        self.unary(|x| -x)
    }
}
impl Neg for Scalar {
    type Output = Scalar;
    #[track_caller]
    fn neg(self) -> Scalar {
        -&self
    }
}

impl PartialEq for Scalar {
    fn eq(&self, other: &Scalar) -> bool {
        self.partial_cmp(other) == Some(Ordering::Equal)
    }
}
impl PartialOrd for Scalar {
    /// As numbers; nothing is equal to or less than one that does not exist.
    fn partial_cmp(&self, other: &Scalar) -> Option<Ordering> {
        self.value().ok()?.partial_cmp(&other.value().ok()?)
    }
}
impl PartialEq<f64> for Scalar {
    fn eq(&self, other: &f64) -> bool {
        self.partial_cmp(other) == Some(Ordering::Equal)
    }
}
impl PartialOrd<f64> for Scalar {
    fn partial_cmp(&self, other: &f64) -> Option<Ordering> {
        self.value().ok()?.partial_cmp(other)
    }
}
impl PartialEq<Scalar> for f64 {
    fn eq(&self, other: &Scalar) -> bool {
        other == self
    }
}
impl PartialOrd<Scalar> for f64 {
    fn partial_cmp(&self, other: &Scalar) -> Option<Ordering> {
        self.partial_cmp(&other.value().ok()?)
    }
}
impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.value() {
            Ok(number) => number.fmt(f),
            Err(e) => e.fmt(f),
        }
    }
}
impl fmt::Debug for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
