//! Programs of autobwd on GPUs, TPUs and other devices.
//!
//! A program with known shapes is lowered to StableHLO text, which a PJRT plugin of XLA compiles and runs.

pub mod lower;
mod lowered;
pub mod pjrt;

pub use lowered::{Argument, Lowered, Output, Source, Target};
