//! Sums of contributions to gradients, and zeros.

use super::{FillZerosLike, Sum};
use crate::{OpDesc, Origin, Var};

/// The sum of all contributions to a gradient.
pub fn sum(parts: impl IntoIterator<Item = Var>, grad: Var) -> OpDesc {
    OpDesc { origin: Origin::Accumulate, ..Sum::description(parts, grad) }
}

/// The gradient of what nothing depends on.
pub fn zeros(value: Var, grad: Var) -> OpDesc {
    OpDesc { origin: Origin::ZeroFill, ..FillZerosLike { x: value, out: grad }.into() }
}
