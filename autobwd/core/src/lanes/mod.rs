//! Elementwise operators: one formula per operator, compiled for each dtype and instruction set, run block by block;
//! and SIMD loops over slices for kernels.
//!
//! Must not know programs or plans. All unsafe code for formulas is here, and no code outside can create a `LaneEntry`
//! that does not match its formula.

mod block;
mod broadcast;
mod equation;
mod formula;
mod integer;
mod interpreter;
mod loops;
mod operand;
mod region;
mod regions;
mod single;
mod spread;

pub(crate) use block::{LaneEntry, MAX_ARGS};
pub use broadcast::{aligned, broadcast_axis, broadcast_dims};
pub use formula::Formula;
pub(crate) use formula::RecordedFormula;
pub(crate) use integer::IntegerKernel;
pub use loops::{LaneOf, Loops, Vectorised, fold_lanes, map_fold_lanes, map_lanes};
pub use region::{Home, Region, RegionSpec, Step};
pub use regions::Regions;
pub use single::FormulaCall;
pub use spread::Spread;

pub use crate::{
    cx::{Isa, isa},
    numbers::{Dual, Float, FormulaFunction, FormulaNode, Integer, Lane, Symbol, UseSelectMaxOrMin},
};
