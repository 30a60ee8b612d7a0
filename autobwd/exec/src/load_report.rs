//! What became of the values of a file.

use std::fmt;

use autobwd_core::{Error, ErrorKind, Meta, Result, Tensor};

/// What [`Scope::load_matching`](crate::Scope::load_matching) did with the values of a file. All names are names in the scope.
#[must_use = "values that did not fit are not loaded: `complete` refuses that"]
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LoadReport {
    /// Values that were set.
    pub loaded: Vec<String>,
    /// Values of the scope that the file does not have.
    pub missing: Vec<String>,
    /// Values of the file that the scope does not have, without [`optimizer_state`](LoadReport::optimizer_state).
    pub unexpected: Vec<String>,
    /// Values of the file that the scope does not have and whose names say that they are the state of an optimizer of
    /// `autobwd_ops`: `w.moment1` next to `w`, or `learning_rate_0`. A model for inference does not need them.
    pub optimizer_state: Vec<String>,
    /// Among those that were set, values of other floating point numbers, rounded to those of the scope: float16, bfloat16
    /// and float32.
    pub converted: Vec<MismatchedValue>,
    /// Values of another dtype or shape, and values with elements that would be infinite in float16.
    pub mismatched: Vec<MismatchedValue>,
}

/// A value whose dtype or shape in a file differs from that in the scope.
#[derive(Clone, Debug, PartialEq)]
pub struct MismatchedValue {
    /// Its name in the scope.
    pub name: String,
    /// Dtype and shape in the scope.
    pub expected: Meta,
    /// Dtype and shape in the file.
    pub stored: Meta,
}

impl LoadReport {
    /// Returns the report if every value was loaded, but for the state of an optimizer.
    ///
    /// # Errors
    /// Values that are missing, unexpected or mismatched: the error lists them.
    pub fn complete(self) -> Result<LoadReport> {
        match self.missing.is_empty() && self.unexpected.is_empty() && self.mismatched.is_empty() {
            true => Ok(self),
            false => Err(Error::new(ErrorKind::NoValue, format!("not all values fit\n{self}"))),
        }
    }
}

impl fmt::Display for LoadReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} loaded", self.loaded.len())?;
        for (what, names) in [("missing", &self.missing), ("unexpected", &self.unexpected)] {
            if !names.is_empty() {
                write!(f, "\n{} {what}: `{}`", names.len(), names.join("`, `"))?;
            }
        }
        for (what, values) in [("converted", &self.converted), ("mismatched", &self.mismatched)] {
            if !values.is_empty() {
                let all: Vec<String> = values.iter().map(ToString::to_string).collect();
                write!(f, "\n{} {what}: {}", all.len(), all.join(", "))?;
            }
        }
        if !self.optimizer_state.is_empty() {
            let count = self.optimizer_state.len();
            write!(
                f,
                "\n{count} not needed: the state of an optimizer, such as `{}`",
                self.optimizer_state[0]
            )?;
        }
        Ok(())
    }
}

impl fmt::Display for MismatchedValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` is {}, {} in the file", self.name, self.expected, self.stored)
    }
}

/// The value in floating point numbers of another size, if they can hold it: finite numbers stay finite.
pub(crate) fn converted(value: &Tensor, expected: &Meta) -> Result<Option<Tensor>> {
    match value.meta().dims == expected.dims {
        true => value.converted_to(expected.dtype),
        false => Ok(None),
    }
}
