//! `fill_diagonal` and `fill_diagonal_tensor`: tensors with other diagonals.

use autobwd::{Composed, Composition, Expr, Infer, Meta, Result, Var, check::*, register_op};

use super::matrices::{diagonal_dims, from_the_end, matrix_axes, on_diagonal, to_the_end};
use crate::{
    Math,
    math::{DimExpr, all_sizes, like, product},
    put::memory_places,
};

/// Sets a diagonal: `out[i][i + offset] = value`, and `out = x` elsewhere.
///
/// With more than two dimensions, all as long as each other, it is `out[i].. [i + offset]`. As in the reference, it then
/// ends after `n * n` elements in memory order unless `wrap`.
#[register_op(grad = Composed, composed)]
pub struct FillDiagonal<V = Var> {
    /// At least two dimensions; any dtype.
    #[input]
    pub x: V,
    /// Same shape as `x`.
    #[output]
    pub out: V,
    /// The elements of the diagonal.
    #[attr(default = 0.0)]
    pub value: f32,
    /// How far the diagonal is to the right of the main diagonal.
    #[attr(default = 0)]
    pub offset: i32,
    /// In a matrix of more rows than columns, start another diagonal below the end of the last one and an empty row.
    #[attr(default = false)]
    pub wrap: bool,
}
impl Infer for FillDiagonal<Meta> {
    fn infer(&mut self) -> Result<()> {
        let x = &self.x;
        self.out.like(x);
        x.require(x.rank() > 1, || "at least two dimensions are needed".into())?;
        let first = x.dims[0];
        let equal = x.rank() == 2 || x.dims.iter().all(|n| n.agrees(first));
        x.require(equal, || "dimensions of one length are needed, as there are more than two".into())
    }
}
impl Composition for FillDiagonal<Expr> {
    fn compose(&mut self) {
        let (x, builder, offset) = (&self.x, self.x.builder(), f64::from(self.offset));
        let dims = all_sizes(x);
        let numel = product(&dims);
        // Diagonal elements have the same distance in memory, the sum of the distances along each dimension.
        let step = (1..dims.len()).fold(DimExpr::from(1), |sum, axis| sum + product(&dims[axis..]));
        let place = memory_places(builder, &dims);
        let columns = &dims[1];
        let end = if self.wrap { numel } else { numel.min(columns * columns) };
        let from = place - offset;
        let is_there = |n: &Expr, end: &DimExpr| {
            n.greater_equal(&like(n, 0.0)).logical_and(&n.less_than(&(like(n, 0.0) + end.number(builder))))
        };
        // A tensor without elements has no distance to divide by.
        let [step, length] = [&step, columns].map(|n| n.max(1).number(builder));
        let is_main = from.remainder(&step).equal(&like(&from, 0.0));
        let column = from.remainder(&length) + offset;
        let is_set = is_main.logical_and(&is_there(&from, &end)).logical_and(&is_there(&column, columns));
        self.out = is_set.where_cond(&like(x, self.value.into()), x);
    }
}
autobwd::samples!(
    FillDiagonal,
    [
        fill_diagonal(uniform([3, 4]), 0.5, 0, false),
        fill_diagonal(uniform([3, 4]), -1.5, 2, false),
        fill_diagonal(uniform([4, 3]), 0.0, -1, false),
        fill_diagonal(uniform([7, 2]), 0.5, 0, false),
        fill_diagonal(uniform([7, 2]), 0.5, 0, true),
        fill_diagonal(uniform([7, 3]), 0.5, 1, true),
        fill_diagonal(uniform([3, 3, 3]), 0.5, 0, true),
        fill_diagonal(uniform([3, 3, 3]), 0.5, -1, true),
        fill_diagonal(uniform([3, 3, 3]), 0.5, 0, false),
        fill_diagonal(uniform([0, 3]), 0.5, 0, false),
        fill_diagonal(uniform([3, 0]), 0.5, 0, false),
        fill_diagonal(integers_below(9, [3, 2]), 7.0, 0, false),
        fill_diagonal(uniform([3]), 0.5, 0, false).fails("`X`: at least two dimensions are needed"),
        fill_diagonal(uniform([2, 3, 2]), 0.5, 0, false).fails("`X`: dimensions of one length are needed"),
    ]
);

fn fill_diagonal(x: Draw, value: f32, offset: i32, wrap: bool) -> FillDiagonal<Draw> {
    FillDiagonal { x, out: out(), value, offset, wrap }
}

/// Replaces a diagonal of matrices: `out[.., i + max(-offset, 0), .., i + max(offset, 0), ..] = y[.., i]`, and `out = x`
/// elsewhere.
#[register_op(grad = Composed, composed)]
pub struct FillDiagonalTensor<V = Var> {
    /// At least two dimensions; any dtype.
    #[input]
    pub x: V,
    /// `x` without `dim1` and `dim2`, and with the length of the diagonal as last dimension; same dtype.
    #[input]
    pub y: V,
    /// Same shape as `x`.
    #[output]
    pub out: V,
    /// How far the diagonal is to the right of the main diagonal.
    #[attr(default = 0)]
    pub offset: i64,
    /// The dimension of rows; negative counts from the end.
    #[attr(default = 0)]
    pub dim1: i32,
    /// The dimension of columns; negative counts from the end.
    #[attr(default = 1)]
    pub dim2: i32,
}
impl Infer for FillDiagonalTensor<Meta> {
    fn infer(&mut self) -> Result<()> {
        let axes = matrix_axes(&self.x, [("dim1", self.dim1), ("dim2", self.dim2)])?;
        let dims = diagonal_dims(&self.x.dims, axes, self.offset);
        self.out.like(&self.x);
        self.y.same_dtype(&self.x)?;
        self.y.require(self.y.dims.agrees(&dims), || format!("the shape of the diagonal, {dims}, is needed"))
    }
}
impl Composition for FillDiagonalTensor<Expr> {
    fn compose(&mut self) {
        let axes = [self.dim1, self.dim2];
        let x = to_the_end(&self.x, axes);
        let [rows, columns] = [-2, -1].map(|axis| x.dim(axis));
        let is_set = on_diagonal(x.builder(), [&rows, &columns], self.offset);
        // In each row, the element of the column.
        let before = DimExpr::from(self.offset.max(0)).min(columns.clone());
        let after = &columns - self.y.dim(-1) - &before;
        let mut paddings = vec![[DimExpr::from(0), DimExpr::from(0)]; self.y.dims().len()];
        if let Some(last) = paddings.last_mut() {
            *last = [before, after];
        }
        let y = self.y.pad_to(&paddings, 0.0).unsqueeze(&[-2]);
        self.out = from_the_end(&is_set.where_cond(&y, &x), axes);
    }
}
autobwd::samples!(
    FillDiagonalTensor,
    [
        fill_diagonal_tensor(uniform([3, 4]), uniform([3]), 0, 0, 1),
        fill_diagonal_tensor(uniform([3, 5]), uniform([2]), 3, 0, 1),
        fill_diagonal_tensor(uniform([4, 3]), uniform([3]), 1, 1, 0),
        fill_diagonal_tensor(uniform([2, 4, 3, 5]), uniform([2, 3, 3]), -1, 1, 3),
        fill_diagonal_tensor(uniform([2, 3, 4]), uniform([3, 2]), 0, -1, 0),
        fill_diagonal_tensor(uniform([2, 3]), uniform([0]), -7, 0, 1),
        fill_diagonal_tensor(uniform([0, 3, 2]), uniform([0, 2]), 0, 1, 2),
        fill_diagonal_tensor(integers_below(9, [3, 2]), integers_below(9, [2]), 0, 0, 1),
        fill_diagonal_tensor(uniform([3, 4]), uniform([2]), 0, 0, 1)
            .fails("`Y`: the shape of the diagonal, [3], is needed"),
        fill_diagonal_tensor(uniform([3, 4]), integers_below(9, [3]), 0, 0, 1)
            .fails("`Y`: dtype int64 does not match"),
        fill_diagonal_tensor(uniform([3]), uniform([3]), 0, 0, 1)
            .fails("`X`: at least two dimensions are needed"),
        fill_diagonal_tensor(uniform([3, 4]), uniform([3]), 0, 0, 2).fails("attribute `dim2` = 2"),
        fill_diagonal_tensor(uniform([3, 4]), uniform([3]), 0, 1, 1)
            .fails("attribute `dim2`: another dimension than `dim1` is needed"),
    ]
);

fn fill_diagonal_tensor(x: Draw, y: Draw, offset: i64, dim1: i32, dim2: i32) -> FillDiagonalTensor<Draw> {
    FillDiagonalTensor { x, y, out: out(), offset, dim1, dim2 }
}
