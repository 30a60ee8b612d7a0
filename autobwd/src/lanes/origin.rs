//! Which outputs of a formula are inputs, unchanged: found by running it on lanes that know nothing else.

use std::ops;

use super::{Float, float::float_operators};

/// A lane that knows which input it is, if it is one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Origin(pub(super) Option<usize>);

/// What a function of lanes has become.
const COMPUTED: Origin = Origin(None);

macro_rules! computed {
    (constants: $($from:ident),*; operators: $($tr:ident $f:ident),*; functions: $($name:ident($($arg:ident),*)),*;) => {
        $(impl ops::$tr for Origin {
            type Output = Origin;
            fn $f(self, _: Origin) -> Origin {
                COMPUTED
            }
        })*
        $(impl From<$from> for Origin {
            fn from(_: $from) -> Origin {
                COMPUTED
            }
        })*
        impl ops::Neg for Origin {
            type Output = Origin;
            fn neg(self) -> Origin {
                COMPUTED
            }
        }
        impl Float for Origin {
            type Mask = ();

            fn gt(self, _: Origin) {}
            fn equals(self, _: Origin) {}
            fn select((): (), yes: Origin, no: Origin) -> Origin {
                if yes == no { yes } else { COMPUTED }
            }
            $(fn $name(self $(, $arg: Origin)*) -> Origin {
                $(let _ = $arg;)*
                COMPUTED
            })*
        }
    };
}
float_operators!([] Origin);
computed! {
    constants: f32, f64;
    operators: Add add, Sub sub, Mul mul, Div div;
    functions: mul_add(b, c), exp(), log(), tanh(), expm1(), log1p(), erf(), normal_cdf(), sigmoid(), gelu(),
        gelu_tanh(), sqrt(), abs(), sin(), cos(), pow(exponent), floor(), round();
}
