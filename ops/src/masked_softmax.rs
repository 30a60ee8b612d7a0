//! Softmax of masked attention scores: `fused_softmax_mask` and `fused_softmax_mask_upper_triangle`.

use autobwd::{Composed, Composition, Expr, Infer, Meta, Result, Var, check::*, register_op};

use crate::{
    Math,
    math::{like, positions},
};

/// Softmax of a masked tensor: `out = softmax(x + mask)` over the last dimension.
#[register_op(grad = Composed, composed)]
pub struct FusedSoftmaxMask<V = Var> {
    /// Scores, `[batch, heads, m, n]`.
    #[input]
    pub x: V,
    /// Added to the scores of all heads, `[batch, 1, m, n]`.
    #[input]
    pub mask: V,
    /// Same shape as `x`.
    #[output]
    pub out: V,
}
impl Infer for FusedSoftmaxMask<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.x.float()?;
        self.x.require(self.x.rank() == 4, || "4 dimensions are needed".into())?;
        self.mask.same_dtype(&self.x)?;
        let mut dims = self.x.dims.clone();
        dims[1] = 1.into();
        self.mask.require(self.mask.dims.agrees(&dims), || format!("dimensions {dims} are needed"))?;
        self.out.like(&self.x);
        Ok(())
    }
}
impl Composition for FusedSoftmaxMask<Expr> {
    fn compose(&mut self) {
        self.out = (&self.x + &self.mask).softmax(-1);
    }
}
autobwd::samples!(
    FusedSoftmaxMask,
    [
        FusedSoftmaxMask { x: uniform([2, 3, 4, 5]), mask: uniform([2, 1, 4, 5]), out: out() },
        FusedSoftmaxMask { x: uniform([2, 3, 4, 0]), mask: uniform([2, 1, 4, 0]), out: out() },
        FusedSoftmaxMask { x: uniform([2, 3, 4, 5]), mask: uniform([2, 3, 4, 5]), out: out() }
            .fails("`Mask`: dimensions [2, 1, 4, 5] are needed"),
        FusedSoftmaxMask { x: uniform([2, 3, 4]), mask: uniform([2, 1, 4]), out: out() }
            .fails("`X`: 4 dimensions are needed"),
        FusedSoftmaxMask { x: uniform([2, 3, 4, 5]), mask: integers_below(9, [2, 1, 4, 5]), out: out() }
            .fails("`Mask`: dtype int64 does not match"),
        FusedSoftmaxMask { x: integers_below(9, [2, 3, 4, 5]), mask: uniform([2, 1, 4, 5]), out: out() }
            .fails("`X`: floating point numbers are needed"),
    ]
);

/// Causal softmax: `out[.., i, j]` is the softmax of `x[.., i, ..=i]`, and 0 for `j > i`.
#[register_op(grad = Composed, composed)]
pub struct FusedSoftmaxMaskUpperTriangle<V = Var> {
    /// Scores, `[batch, heads, n, n]`.
    #[input]
    pub x: V,
    /// Same shape as `x`.
    #[output]
    pub out: V,
}
impl Infer for FusedSoftmaxMaskUpperTriangle<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.x.float()?;
        let [_, _, rows, columns] = self.x.unpack()?;
        self.x.require(rows.agrees(columns), || "square matrices are needed".into())?;
        self.out.like(&self.x);
        Ok(())
    }
}
impl Composition for FusedSoftmaxMaskUpperTriangle<Expr> {
    fn compose(&mut self) {
        let builder = self.x.builder();
        let row = positions(builder, &self.x.dim(2)).unsqueeze(&[1]);
        let column = positions(builder, &self.x.dim(3)).unsqueeze(&[0]);
        let is_past = column.less_equal(&row);
        self.out = is_past.where_cond(&self.x, &like(&self.x, f64::NEG_INFINITY)).softmax(-1);
    }
}
autobwd::samples!(
    FusedSoftmaxMaskUpperTriangle,
    [
        FusedSoftmaxMaskUpperTriangle { x: uniform([2, 3, 4, 4]), out: out() },
        FusedSoftmaxMaskUpperTriangle { x: uniform([2, 3, 0, 0]), out: out() },
        FusedSoftmaxMaskUpperTriangle { x: uniform([2, 3, 4, 5]), out: out() }
            .fails("`X`: square matrices are needed"),
        FusedSoftmaxMaskUpperTriangle { x: uniform([3, 4, 4]), out: out() }
            .fails("`X`: 4 dimensions are needed"),
        FusedSoftmaxMaskUpperTriangle { x: integers_below(9, [2, 3, 4, 4]), out: out() }
            .fails("`X`: floating point numbers are needed"),
    ]
);
