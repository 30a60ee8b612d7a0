//! Bounds of hyperparameters.

use autobwd::{Error, Result};

fn check(name: &str, value: f32, holds: bool, bounds: &str) -> Result<()> {
    match holds {
        true => Ok(()),
        false => Err(Error::attr(name, format!("{value} is not {bounds}"))),
    }
}

/// A finite number from 0 on.
pub(super) fn at_least_zero(name: &str, value: f32) -> Result<()> {
    check(name, value, value >= 0.0 && value.is_finite(), "a finite number from 0 on")
}

/// A finite number above 0.
pub(super) fn above_zero(name: &str, value: f32) -> Result<()> {
    check(name, value, value > 0.0 && value.is_finite(), "a positive number")
}

/// A number in `[0, 1)`.
pub(super) fn below_one(name: &str, value: f32) -> Result<()> {
    check(name, value, (0.0..1.0).contains(&value), "in [0, 1)")
}

/// The hyperparameters of Adam and its relatives.
pub(super) fn adam(rate: f32, [beta1, beta2]: [f32; 2], epsilon: f32) -> Result<()> {
    at_least_zero("rate", rate)?;
    below_one("beta1", beta1)?;
    below_one("beta2", beta2)?;
    at_least_zero("epsilon", epsilon)
}
