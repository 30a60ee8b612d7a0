//! A loss that is computed already.

use autobwd::{Composed, Composition, Expr, Infer, Meta, Result, Var, check::*, register_op};

use crate::Math;

/// Marks a tensor as the loss: its sum, its mean, or the tensor itself.
#[register_op(grad = Composed, composed)]
pub struct IdentityLoss<V = Var> {
    /// Any shape.
    #[input]
    pub x: V,
    /// A scalar, or the shape of `x` without a reduction.
    #[output]
    pub out: V,
    /// The reduction: 0 is the sum, 1 the mean, 2 none.
    #[attr(default = 1, min = 0, max = 2)]
    pub reduction: i32,
}
impl Infer for IdentityLoss<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.x.float()?;
        match self.reduction {
            2 => self.out.like(&self.x),
            _ => self.out.set(self.x.dtype, []),
        }
        Ok(())
    }
}
impl Composition for IdentityLoss<Expr> {
    fn compose(&mut self) {
        self.out = match self.reduction {
            0 => self.x.sum(&[]),
            1 => self.x.mean(),
            _ => self.x.copy(),
        };
    }
}
autobwd::samples!(
    IdentityLoss,
    [
        IdentityLoss { x: uniform([2, 3]), out: out(), reduction: 0 },
        IdentityLoss { x: uniform([2, 3]), out: out(), reduction: 1 },
        IdentityLoss { x: uniform([2, 3]), out: out(), reduction: 2 },
        IdentityLoss { x: uniform([]), out: out(), reduction: 1 },
        IdentityLoss { x: uniform([0, 3]), out: out(), reduction: 0 },
        IdentityLoss { x: uniform([0, 3]), out: out(), reduction: 2 },
        IdentityLoss { x: uniform([2]), out: out(), reduction: 3 }.fails("attribute `reduction`"),
        IdentityLoss { x: integers_below(2, [2]), out: out(), reduction: 0 }
            .fails("`X`: floating point numbers are needed"),
    ]
);
