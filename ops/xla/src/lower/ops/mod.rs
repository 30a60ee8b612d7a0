//! Rules of the operators of the library, one file a family.

mod collective;
mod concat;
mod conv;
mod cumulative;
mod fill;
mod index;
mod integer;
mod lstm;
mod matmul;
mod order;
mod pool;
mod random;
mod reduce;
mod shape;

use super::rules::LowerRule;

/// What every family needs.
mod prelude {
    pub(super) use super::super::{
        Hlo, HloDType, Lower, Reduction,
        rules::{LowerRule, rule},
    };
    pub(super) use super::family;
}

/// The function `rules` of a family, with the rules of these operators.
macro_rules! family {
    ($($op:ident),* $(,)?) => {
        pub(super) fn rules() -> Vec<(&'static str, LowerRule)> {
            vec![$(rule::<$op>()),*]
        }
    };
}
use family;

/// All rules by the type of operators.
pub(super) fn rules() -> Vec<(&'static str, LowerRule)> {
    let families = [
        collective::rules(),
        conv::rules(),
        cumulative::rules(),
        fill::rules(),
        index::rules(),
        integer::rules(),
        concat::rules(),
        lstm::rules(),
        matmul::rules(),
        order::rules(),
        pool::rules(),
        random::rules(),
        reduce::rules(),
        shape::rules(),
    ];
    families.into_iter().flatten().collect()
}
