//! Forms of operators that compile, whatever surrounds them.
#![allow(missing_docs)]

pub mod from_macro_rules;
pub mod only_outputs;
pub mod own_names;
pub mod private_struct;
pub mod strict_lints;
