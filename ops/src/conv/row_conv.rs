//! Convolution of the rows of sequences with the rows that follow.

use autobwd::{Composed, Composition, Expr, Infer, Meta, Result, Var, check::*, register_op, tensor::Dim};

use crate::{
    DimExpr, Math,
    math::{positions, sizes},
};

/// Row convolution (Amodei et al., 2016): `out[b, t, d] = Σ x[b, t + i, d] * filter[i, d]`, with zeros after the end.
#[register_op(grad = Composed, composed)]
pub struct RowConv<V = Var> {
    /// Sequences, `[batch, time, features]`.
    #[input]
    pub x: V,
    /// A filter for each feature, over the present and following steps: `[steps, features]`, at least one step.
    #[input]
    pub filter: V,
    /// Same shape as `x`.
    #[output]
    pub out: V,
}
impl Infer for RowConv<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.x.float()?;
        self.filter.same_dtype(&self.x)?;
        let [_, _, features] = self.x.unpack()?;
        let [steps, columns] = self.filter.unpack()?;
        self.filter.require(columns.agrees(features), || format!("{features} columns are needed"))?;
        self.filter.require(steps != 0, || "at least one row is needed".into())?;
        self.out.like(&self.x);
        Ok(())
    }

    fn flops(&self) -> Dim {
        Dim::from(2) * self.x.dims.numel() * self.filter.dims[0]
    }
}
impl Composition for RowConv<Expr> {
    fn compose(&mut self) {
        let ([batch, time, features], steps) = (sizes(&self.x), self.filter.dim(0));
        let zero = || DimExpr::from(0);
        let padded = self.x.pad_to(&[[zero(), zero()], [zero(), &steps - 1], [zero(), zero()]], 0.0);
        // The steps of each window in a dimension of their own.
        let first = positions(self.x.builder(), &time).unsqueeze(&[1]);
        let places = (first + positions(self.x.builder(), &steps).unsqueeze(&[0])).flatten(0, 1);
        let windows = padded.index_select(&places, 1).reshape_to(&[batch, time, steps, features]);
        self.out = (windows * &self.filter).sum(&[2]);
    }
}
autobwd::samples!(
    RowConv,
    [
        RowConv { x: uniform([2, 5, 4]), filter: uniform([3, 4]), out: out() },
        RowConv { x: uniform([1, 2, 3]), filter: uniform([4, 3]), out: out() },
        RowConv { x: uniform([2, 5, 3]), filter: uniform([1, 3]), out: out() },
        RowConv { x: uniform([2, 0, 3]), filter: uniform([4, 3]), out: out() },
        RowConv { x: uniform([2, 5, 4]), filter: uniform([3, 3]), out: out() }
            .fails("`Filter`: 4 columns are needed"),
        RowConv { x: uniform([2, 5, 4]), filter: uniform([0, 4]), out: out() }
            .fails("`Filter`: at least one row is needed"),
        RowConv { x: uniform([5, 4]), filter: uniform([3, 4]), out: out() }
            .fails("`X`: 3 dimensions are needed"),
        RowConv { x: uniform([2, 5, 4]), filter: uniform([4]), out: out() }
            .fails("`Filter`: 2 dimensions are needed"),
        RowConv { x: uniform([2, 5, 4]), filter: integers_below(9, [3, 4]), out: out() }
            .fails("`Filter`: dtype int64 does not match"),
        RowConv { x: integers_below(9, [2, 5, 4]), filter: uniform([3, 4]), out: out() }
            .fails("`X`: floating point numbers are needed"),
    ]
);
