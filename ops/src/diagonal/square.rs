//! `diag_v2` and `diag_embed`: matrices with given diagonals.

use autobwd::{
    Composed, Composition, DType, Dims, Expr, Infer, Meta, Result, Var, check::*, register_op, tensor::Dim,
};

use super::matrices::{diagonal_dims, diagonal_of, from_the_end, matrix_axes, on_diagonal};
use crate::{
    Math,
    math::{DimExpr, all_sizes, like},
};

/// A matrix with a diagonal, `out[i + max(-offset, 0)][i + max(offset, 0)] = x[i]`, or the diagonal of a matrix,
/// `out[i] = x[i + max(-offset, 0)][i + max(offset, 0)]`.
#[register_op(grad = Composed, composed)]
pub struct DiagV2<V = Var> {
    /// A scalar, a vector or a matrix; any dtype. A scalar counts as a vector of one element.
    #[input]
    pub x: V,
    /// A square matrix as long as the vector and `offset` need, or the vector of the diagonal.
    #[output]
    pub out: V,
    /// How far the diagonal is to the right of the main diagonal.
    #[attr(default = 0)]
    pub offset: i32,
    /// The elements outside of the diagonal.
    #[attr(default = 0.0)]
    pub padding_value: f32,
}
impl Infer for DiagV2<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.x.require(self.x.rank() <= 2, || "a vector or a matrix is needed".into())?;
        let dims = match &self.x.dims[..] {
            [_, _] => diagonal_dims(&self.x.dims, [0, 1], self.offset.into()),
            lengths => {
                let length = side(lengths.first().copied().unwrap_or(Dim::from(1)), self.offset);
                [length; 2].into_iter().collect()
            }
        };
        self.out.set(self.x.dtype, dims);
        Ok(())
    }
}
impl Composition for DiagV2<Expr> {
    fn compose(&mut self) {
        let offset = i64::from(self.offset);
        self.out = match self.x.dims().len() {
            2 => diagonal_of(&self.x, [0, 1], offset),
            1 => embedded(&self.x, offset, self.padding_value.into()),
            _ => embedded(&self.x.reshape(&[1]), offset, self.padding_value.into()),
        };
    }
}
autobwd::samples!(
    DiagV2,
    [
        diag(uniform([3]), 0, 0.0),
        diag(uniform([3]), 2, 0.5),
        diag(uniform([2]), -1, -1.5),
        diag(uniform([]), 1, 0.0),
        diag(uniform([0]), 2, 0.25),
        diag(uniform([3, 4]), 0, 0.5),
        diag(uniform([3, 4]), -1, 0.0),
        diag(uniform([2, 3]), 5, 0.0),
        diag(integers_below(9, [3]), 1, 7.0),
        diag(integers_below(9, [3, 2]).of(DType::I32), 1, 0.0),
        diag(uniform([2, 3, 4]), 0, 0.0).fails("`X`: a vector or a matrix is needed"),
    ]
);

fn diag(x: Draw, offset: i32, padding_value: f32) -> DiagV2<Draw> {
    DiagV2 { x, out: out(), offset, padding_value }
}

/// Matrices with these diagonals, and with 0 elsewhere:
/// `out[.., i + max(-offset, 0), .., i + max(offset, 0), ..] = input[.., i]`.
#[register_op(grad = Composed, composed)]
pub struct DiagEmbed<V = Var> {
    /// At least one dimension, the last one for diagonals; any dtype.
    #[input]
    pub input: V,
    /// `input` without its last dimension, and with `dim1` and `dim2` as long as the diagonal and `offset` need.
    #[output]
    pub out: V,
    /// How far the diagonal is to the right of the main diagonal.
    #[attr(default = 0)]
    pub offset: i32,
    /// The dimension of rows in the result; negative counts from the end.
    #[attr(default = -2)]
    pub dim1: i32,
    /// The dimension of columns in the result; negative counts from the end.
    #[attr(default = -1)]
    pub dim2: i32,
}
impl Infer for DiagEmbed<Meta> {
    fn infer(&mut self) -> Result<()> {
        let Some((length, others)) = self.input.dims.split_last() else {
            return Err(self.input.wrong("at least one dimension is needed"));
        };
        let length = side(*length, self.offset);
        self.out.set(self.input.dtype, others.iter().copied().chain([length; 2]).collect::<Dims>());
        let axes = matrix_axes(&self.out, [("dim1", self.dim1), ("dim2", self.dim2)])?;
        let mut others = others.iter().copied();
        let dims = (0..self.out.rank())
            .map(|axis| if axes.contains(&axis) { length } else { others.next().unwrap_or(length) });
        let dims = dims.collect::<Dims>();
        self.out.set(self.input.dtype, dims);
        Ok(())
    }
}
impl Composition for DiagEmbed<Expr> {
    fn compose(&mut self) {
        let matrices = embedded(&self.input, self.offset.into(), 0.0);
        self.out = from_the_end(&matrices, [self.dim1, self.dim2]);
    }
}
autobwd::samples!(
    DiagEmbed,
    [
        diag_embed(uniform([3]), 0, -2, -1),
        diag_embed(uniform([2, 3]), 1, 0, 2),
        diag_embed(uniform([2, 3]), -2, 2, 0),
        diag_embed(uniform([2, 4, 3]), 0, 1, -4),
        diag_embed(uniform([2, 0]), 1, -2, -1),
        diag_embed(uniform([0, 2]), 0, -2, -1),
        diag_embed(integers_below(9, [2, 3]), 0, -2, -1),
        diag_embed(uniform([]), 0, -2, -1).fails("`Input`: at least one dimension is needed"),
        diag_embed(uniform([3]), 0, 2, 0).fails("attribute `dim1` = 2"),
        diag_embed(uniform([3]), 0, 1, -1).fails("attribute `dim2`: another dimension than `dim1` is needed"),
    ]
);

fn diag_embed(input: Draw, offset: i32, dim1: i32, dim2: i32) -> DiagEmbed<Draw> {
    DiagEmbed { input, out: out(), offset, dim1, dim2 }
}

/// Rows and columns of a matrix with that diagonal.
fn side(length: Dim, offset: i32) -> Dim {
    length.get().map_or(Dim::UNKNOWN, |n| Dim::from(n.saturating_add(offset.unsigned_abs() as usize)))
}

/// Square matrices with the diagonals `x`, and with `padding` elsewhere.
fn embedded(x: &Expr, offset: i64, padding: f64) -> Expr {
    let mut paddings = vec![[DimExpr::from(0), DimExpr::from(0)]; x.dims().len()];
    if let Some(last) = paddings.last_mut() {
        *last = [offset, -offset].map(|n| DimExpr::from(n.max(0)));
    }
    // In each row, the element of the column.
    let rows = x.pad_to(&paddings, 0.0).unsqueeze(&[-2]);
    let n = rows.dim(-1);
    let mut dims = all_sizes(&rows);
    let at = dims.len() - 2;
    dims[at] = n.clone();
    let rows = rows.expand_to(&dims);
    on_diagonal(x.builder(), [&n, &n], offset).where_cond(&rows, &like(&rows, padding))
}
