//! `Debug` of types that hold functions, threads or memory: prints their name without content.

use std::fmt;

use crate::{
    Builder, Cx, GradCx, OpInfo, OpInfoMap,
    desc::draw::Labels,
    graph_builder::{FunctionCall, SourceValue, Transaction, ValueSettings},
    lanes::{FormulaCall, FusedKernel},
    op::{DeclaredVars, Lookup, Parts, ShapeCache},
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
    FunctionCall: "FunctionCall",
    Builder: "Builder",
    Cx: "Cx",
    DeclaredVars<'_>: "DeclaredVars",
    FormulaCall: "FormulaCall",
    SourceValue: "SourceValue",
    GradCx<'_>: "GradCx",
    Labels<'_>: "Labels",
    Lookup<'_>: "Lookup",
    Parts<'_>: "Parts",
    FusedKernel: "FusedKernel",
    ShapeCache: "ShapeCache",
    TensorArray: "TensorArray",
    Transaction: "Transaction",
    ValueSettings: "ValueSettings",
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
