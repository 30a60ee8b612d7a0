//! `diagonal` and `trace`: the elements of diagonals, and their sums.

use autobwd::{Composed, Composition, DType, Dims, Expr, Infer, Meta, Result, Var, check::*, register_op};

use super::matrices::{diagonal_dims, diagonal_of, matrix_axes};
use crate::{Math, math::in_dtype};

/// Elements of a diagonal of matrices: `out[.., i] = input[.., i + max(-offset, 0), .., i + max(offset, 0), ..]`.
#[register_op(grad = Composed, composed)]
pub struct Diagonal<V = Var> {
    /// At least two dimensions, any dtype.
    #[input]
    pub input: V,
    /// `input` without `axis1` and `axis2`, and with the length of the diagonal as last dimension.
    #[output]
    pub out: V,
    /// How far the diagonal is to the right of the main diagonal.
    #[attr(default = 0)]
    pub offset: i32,
    /// The dimension of rows; negative counts from the end.
    #[attr(default = 0)]
    pub axis1: i32,
    /// The dimension of columns; negative counts from the end.
    #[attr(default = 1)]
    pub axis2: i32,
}
impl Infer for Diagonal<Meta> {
    fn infer(&mut self) -> Result<()> {
        let axes = matrix_axes(&self.input, [("axis1", self.axis1), ("axis2", self.axis2)])?;
        self.out.set(self.input.dtype, diagonal_dims(&self.input.dims, axes, self.offset.into()));
        Ok(())
    }
}
impl Composition for Diagonal<Expr> {
    fn compose(&mut self) {
        self.out = diagonal_of(&self.input, [self.axis1, self.axis2], self.offset.into());
    }
}
autobwd::samples!(
    Diagonal,
    [
        diagonal(uniform([3, 4]), 0, 0, 1),
        diagonal(uniform([3, 5]), 2, 0, 1),
        diagonal(uniform([4, 3]), -2, 1, 0),
        diagonal(uniform([2, 3, 4]), 1, -1, 0),
        diagonal(uniform([2, 4, 3, 5]), -1, 1, 3),
        diagonal(uniform([2, 3]), -7, 0, 1),
        diagonal(uniform([3, 0]), 0, 0, 1),
        diagonal(uniform([0, 3, 2]), 0, 1, 2),
        diagonal(integers_below(9, [3, 2]), 0, 0, 1),
        diagonal(uniform([3]), 0, 0, 1).fails("`Input`: at least two dimensions are needed"),
        diagonal(uniform([3, 2]), 0, 0, 2).fails("attribute `axis2` = 2"),
        diagonal(uniform([3, 2]), 0, 1, -1)
            .fails("attribute `axis2`: another dimension than `axis1` is needed"),
    ]
);

fn diagonal(input: Draw, offset: i32, axis1: i32, axis2: i32) -> Diagonal<Draw> {
    Diagonal { input, out: out(), offset, axis1, axis2 }
}

/// Sum of a diagonal of matrices: `out = Σ diagonal(input)`.
#[register_op(grad = Composed, composed)]
pub struct Trace<V = Var> {
    /// At least two dimensions of signed integers or floating-point numbers.
    #[input]
    pub input: V,
    /// `input` without `axis1` and `axis2`; 0 for a diagonal without elements.
    #[output]
    pub out: V,
    /// How far the diagonal is to the right of the main diagonal.
    #[attr(default = 0)]
    pub offset: i32,
    /// The dimension of rows; negative counts from the end.
    #[attr(default = 0)]
    pub axis1: i32,
    /// The dimension of columns; negative counts from the end.
    #[attr(default = 1)]
    pub axis2: i32,
}
impl Infer for Trace<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.input.signed()?;
        let axes = matrix_axes(&self.input, [("axis1", self.axis1), ("axis2", self.axis2)])?;
        let dims = diagonal_dims(&self.input.dims, axes, self.offset.into());
        self.out.set(self.input.dtype, dims.iter().take(dims.len() - 1).copied().collect::<Dims>());
        Ok(())
    }
}
impl Composition for Trace<Expr> {
    fn compose(&mut self) {
        let diagonal = diagonal_of(&self.input, [self.axis1, self.axis2], self.offset.into());
        // A sum of int32 is int64.
        self.out = in_dtype(&diagonal.sum(&[-1]), self.input.dtype());
    }
}
autobwd::samples!(
    Trace,
    [
        trace(uniform([3, 4]), 0, 0, 1),
        trace(uniform([3, 5]), 2, 0, 1),
        trace(uniform([2, 4, 3]), -2, 2, -2),
        trace(uniform([2, 3, 4]), 1, -1, 0),
        trace(uniform([3, 0]), 0, 0, 1),
        trace(uniform([0, 3, 2]), 0, 1, 2),
        trace(integers_below(9, [3, 2]), 0, 0, 1),
        trace(integers_below(9, [3, 2]).of(DType::I32), 0, 0, 1),
        trace(uniform([]), 0, 0, 1).fails("`Input`: at least two dimensions are needed"),
        trace(uniform([3, 2]), 0, 0, 0).fails("attribute `axis2`: another dimension than `axis1` is needed"),
        trace(integers_below(2, [3, 2]).of(DType::Bool), 0, 0, 1)
            .fails("`Input`: signed or floating point numbers are needed"),
    ]
);

fn trace(input: Draw, offset: i32, axis1: i32, axis2: i32) -> Trace<Draw> {
    Trace { input, out: out(), offset, axis1, axis2 }
}
