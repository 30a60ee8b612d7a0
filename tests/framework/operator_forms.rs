//! Forms of operator definitions that must compile in any context.
#![allow(missing_docs)]

pub mod from_macro_rules;
pub mod only_outputs;
pub mod own_names;
pub mod private_struct;
pub mod strict_lints;
