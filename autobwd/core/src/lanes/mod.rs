//! Elementwise operators: one formula per operator, compiled for each dtype and instruction set, run block by block;
//! and SIMD loops over slices for kernels.
//!
//! Must not know programs or plans. All unsafe code for formulas is here, and no code outside can create a `LaneEntry`
//! that does not match its formula.
//!
//! An operator may have both a formula and a kernel, as comparisons, choices, casts and copies do; its formula then
//! runs inside fused kernels. A second formula, for int32 and int64, makes an exact kernel without gradient.

mod block_args;
mod block_function;
pub(crate) mod broadcast;
pub(crate) mod broadcast_map;
mod dispatch;
mod equation;
mod formula;
pub(crate) mod formula_space;
pub(crate) mod fused_kernel;
pub(crate) mod fused_kernels;
pub(crate) mod half_copy;
mod integer;
mod interpreter;
mod load_store;
pub(crate) mod scalar_path;

pub(crate) use block_function::{LaneEntry, MAX_ARGS};
pub(crate) use broadcast::{broadcast_axis, broadcast_dims};
pub use dispatch::{LaneOf, VectorLoops, Vectorised, fold_lanes, map_fold_lanes, map_lanes};
pub use formula::Formula;
pub(crate) use formula::RecordedFormula;
pub(crate) use fused_kernel::FusedKernel;
pub(crate) use integer::IntegerKernel;
pub(crate) use scalar_path::FormulaCall;

pub use crate::{
    numbers::{Dual, Float, FormulaFunction, FormulaNode, Integer, Lane, Symbol, UseSelectMaxOrMin},
    runtime::{Isa, isa},
};
