//! Rules of the operators of the library, one file a family.

mod collective;
mod concat;
mod conv;
mod cumulative;
mod fill;
mod index;
mod integer;
mod matmul;
mod order;
mod pool;
mod random;
mod reduce;
mod shape;

/// What every family needs.
mod prelude {
    pub(super) use super::super::{Hlo, HloDType, Reduction};
    pub(super) use crate::rules;
    pub(super) use autobwd::op::Rule;
}
