//! Operators that accumulate gradients, and zero gradients.

use super::{FillZerosLike, Sum};
use crate::{OpDesc, Origin, Var};

/// The sum of all contributions to a gradient.
pub fn sum(parts: impl IntoIterator<Item = Var>, grad: Var) -> OpDesc {
    OpDesc { origin: Origin::Accumulate, ..Sum::description(parts, grad) }
}

/// The zero gradient of a value on which no target depends.
pub fn zeros(value: Var, grad: Var) -> OpDesc {
    OpDesc { origin: Origin::ZeroFill, ..FillZerosLike { x: value, out: grad }.into() }
}
