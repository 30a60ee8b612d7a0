//! Diagonals of matrices, composed of other operators.

mod elements;
mod matrices;
mod replaced;
mod square;

pub use elements::{Diagonal, Trace};
pub use replaced::{FillDiagonal, FillDiagonalTensor};
pub use square::{DiagEmbed, DiagV2};
