//! `Debug` of types that hold functions, threads or memory: prints their name without content.

use std::fmt;

use crate::{
    Builder, Cx, GradCx, OpInfo, OpInfoMap,
    build::{Applied, Given, Transaction, Watch},
    desc::draw::Labels,
    lanes::{FormulaCall, Region},
    op::{Declared, Lookup, Parts, ShapeCache},
    tensor::TensorArray,
};

macro_rules! opaque {
    ($($ty:ty: $name:literal),* $(,)?) => {$(
        impl fmt::Debug for $ty {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct($name).finish_non_exhaustive()
            }
        }
    )*};
}

opaque! {
    Applied: "Applied",
    Builder: "Builder",
    Cx: "Cx",
    Declared<'_>: "Declared",
    FormulaCall: "FormulaCall",
    Given: "Given",
    GradCx<'_>: "GradCx",
    Labels<'_>: "Labels",
    Lookup<'_>: "Lookup",
    Parts<'_>: "Parts",
    Region: "Region",
    ShapeCache: "ShapeCache",
    TensorArray: "TensorArray",
    Transaction: "Transaction",
    Watch: "Watch",
}

impl fmt::Debug for OpInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OpInfo").field(&self.schema().name).finish()
    }
}
impl fmt::Debug for OpInfoMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter().map(|info| info.schema().name)).finish()
    }
}
