//! Rules of the operators of the library, one file a family.

mod matmul;
mod reduce;
mod softmax;

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
    [matmul::rules(), reduce::rules(), softmax::rules()].into_iter().flatten().collect()
}
