//! Number types for formulas: floating point lanes with their functions, dual numbers, symbols, integers.
//!
//! Must not know operators.

mod dual;
mod float;
pub(crate) mod fused;
mod integer;
mod lane;
mod math;
mod node;
mod symbolic;

pub use dual::Dual;
pub use float::{Float, Lane, SelectMask, UseSelectMaxOrMin};
pub use integer::Integer;
pub use node::{FormulaFunction, FormulaNode};
pub use symbolic::Symbol;
pub(crate) use symbolic::{Arena, record};
