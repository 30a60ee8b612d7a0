//! The dtype and the dimensions in which a backend computes a formula.

use super::broadcast::{aligned, broadcast_axis};
use crate::{DType, Dim, Dims, Error, Meta, OpDesc, Result, Schema};

/// The dtype and the broadcast dimensions of a formula whose operands and results have known types.
#[derive(Clone, Debug)]
pub struct FormulaSpace {
    /// The arithmetic of the first floating point dtype, or else the first one that is not bool, or else float32.
    pub dtype: DType,
    /// The dimensions that all operands broadcast to.
    pub dims: Dims,
    axis: Option<usize>,
}

impl FormulaSpace {
    /// The space of an operator's formula, from the types of its inputs and outputs.
    ///
    /// # Errors
    /// An operand that does not broadcast.
    pub fn of(schema: &Schema, desc: &OpDesc, types: &[Meta]) -> Result<FormulaSpace> {
        let dtypes = || types.iter().map(|meta| meta.dtype);
        let dtype = dtypes().find(|dtype| dtype.is_float()).map(DType::arithmetic);
        let dtype = dtype.or(dtypes().find(|dtype| *dtype != DType::Bool)).unwrap_or(DType::F32);
        let (rank, one) = (types.iter().map(Meta::rank).max().unwrap_or(0), Dim::from(1));
        let dims = std::iter::repeat_n(one, rank).collect();
        let mut space = FormulaSpace { dtype, dims, axis: broadcast_axis(schema, desc) };
        for meta in types {
            let own = space.align(&meta.dims, one)?;
            // A known dimension other than 1 says more than an unknown one.
            for (all, dim) in space.dims.iter_mut().zip(own).filter(|(_, dim)| *dim != one) {
                *all = if *all == one { dim } else { all.or(dim) };
            }
        }
        Ok(space)
    }

    /// The dimensions of an operand at the full rank.
    ///
    /// # Errors
    /// The operand does not broadcast.
    pub fn align<D: Copy + PartialEq>(&self, dims: &[D], one: D) -> Result<Vec<D>> {
        let aligned = aligned(dims, self.dims.len(), self.axis, one);
        aligned.map(|dims| dims.to_vec()).ok_or_else(|| Error::internal("an operand that does not broadcast"))
    }
}
