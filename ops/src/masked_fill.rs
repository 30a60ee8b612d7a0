//! A number in place of elements under a mask.

use autobwd::{
    Composed, Composition, DType, Expr, Infer, Meta, Result, Var, check::*, operators::broadcast, register_op,
};

use crate::Math;

/// A number where a mask is true: `out = value` there, and `x` elsewhere. Tensor and mask broadcast against each other.
#[register_op(grad = Composed, composed)]
pub struct MaskedFill<V = Var> {
    /// Any shape, any dtype.
    #[input("x")]
    pub x: V,
    /// Booleans.
    #[input("mask")]
    pub mask: V,
    /// One element, same dtype as `x`.
    #[input("value")]
    pub value: V,
    /// The broadcast shape of `x` and `mask`.
    #[output("out")]
    pub out: V,
}
impl Infer for MaskedFill<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.mask.require(self.mask.dtype == DType::Bool, || "`bool` is needed".into())?;
        self.value.same_dtype(&self.x)?;
        self.value.require(self.value.dims.numel().agrees(1.into()), || "one element is needed".into())?;
        self.out.set(self.x.dtype, broadcast(&self.x, &self.mask, -1)?);
        Ok(())
    }
}
impl Composition for MaskedFill<Expr> {
    fn compose(&mut self) {
        self.out = self.mask.where_cond(&self.value.reshape(&[]), &self.x);
    }
}
autobwd::samples!(
    MaskedFill,
    [
        masked_fill(uniform([2, 3]), integers_below(2, [2, 3]), uniform([])),
        masked_fill(uniform([2, 3]), integers_below(2, [3]), uniform([1])),
        masked_fill(uniform([3]), integers_below(2, [2, 1]), uniform([1, 1])),
        masked_fill(uniform([]), given([], [1.0]), uniform([])),
        masked_fill(uniform([0, 3]), integers_below(2, [3]), uniform([])),
        masked_fill(integers_below(9, [4]), integers_below(2, [4]), integers_below(9, [])),
        masked_fill(uniform([2, 3]), integers_below(2, [2]), uniform([]))
            .fails("`mask`: a shape that broadcasts with [2, 3] of `x` is needed"),
        masked_fill(uniform([2]), integers_below(2, [2]), uniform([2]))
            .fails("`value`: one element is needed"),
        masked_fill(uniform([2]), integers_below(2, [2]), integers_below(2, []))
            .fails("`value`: dtype int64 does not match"),
        MaskedFill { mask: uniform([2]), ..masked_fill(uniform([2]), integers_below(2, [2]), uniform([])) }
            .fails("`mask`: `bool` is needed"),
    ]
);

fn masked_fill(x: Draw, mask: Draw, value: Draw) -> MaskedFill<Draw> {
    MaskedFill { x, mask: mask.of(DType::Bool), value, out: out() }
}
