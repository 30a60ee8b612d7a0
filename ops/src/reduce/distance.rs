//! Norms of tensors and of their slices: `l1_norm`, `norm`, `dist` and `renorm`.

use autobwd::{Composed, Composition, Expr, Infer, Meta, New, Result, Var, check::*, emit, register_op};

use super::PNorm;
use crate::{
    Math,
    kernel_helpers::{broadcast, finite},
    math::like,
};

/// Sum of the sizes of all elements: `out = Σ |x|`.
#[register_op(grad = Composed, composed)]
pub struct L1Norm<V = Var> {
    /// Any shape.
    #[input]
    pub x: V,
    /// The sum, `[]`.
    #[output]
    pub out: V,
}
impl Infer for L1Norm<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.x.float()?;
        self.out.set(self.x.dtype, []);
        Ok(())
    }
}
impl Composition for L1Norm<Expr> {
    fn compose(&mut self) {
        self.out = self.x.abs().sum(&[]);
    }
}
autobwd::samples!(
    L1Norm,
    [
        L1Norm { x: away_from(0.0, [2, 3]), out: out() },
        L1Norm { x: away_from(0.0, []), out: out() },
        L1Norm { x: uniform([0, 3]), out: out() },
        L1Norm { x: integers_below(9, [2]), out: out() }.fails("`X`: floating point numbers are needed"),
    ]
);

/// Scales the vectors along an axis to length 1: `out = x / norm` with `norm = √(Σ x² + epsilon)`.
#[register_op(grad = Composed, composed)]
pub struct NormOp<V = Var> {
    /// At least one dimension.
    #[input]
    pub x: V,
    /// Same shape as `x`.
    #[output]
    pub out: V,
    /// `x` with 1 in place of the axis.
    #[output]
    pub norm: V,
    /// The dimension; negative counts from the end.
    #[attr]
    pub axis: i32,
    /// Added to the sum of squares, so that the divisor stays above 0.
    #[attr(default = 1e-10, min = 0.0)]
    pub epsilon: f32,
    /// Accepted for compatibility: it has no effect.
    #[attr(default = false)]
    pub is_test: bool,
}
impl Infer for NormOp<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.x.float()?;
        let axis = self.x.axis("axis", self.axis.into())?;
        self.out.like(&self.x);
        self.norm.like(&self.x);
        self.norm.dims[axis] = 1.into();
        Ok(())
    }
}
impl Composition for NormOp<Expr> {
    fn compose(&mut self) {
        self.norm = (self.x.square().sum_keepdim(&[self.axis]) + f64::from(self.epsilon)).sqrt();
        self.out = &self.x / &self.norm;
    }
}
autobwd::samples!(
    NormOp,
    [
        norm(uniform([2, 3, 4]), 1, 1e-10),
        norm(uniform([2, 3]), -1, 0.25),
        NormOp { is_test: true, ..norm(away_from(0.0, [3]), 0, 0.0) },
        norm(uniform([0, 3]), 1, 0.1),
        norm(uniform([3, 0]), 1, 0.1),
        norm(uniform([2, 3]), 2, 0.1).fails("attribute `axis` = 2"),
        norm(uniform([2, 3]), 1, -0.1).fails("attribute `epsilon`"),
        norm(integers_below(9, [2]), 0, 0.1).fails("`X`: floating point numbers are needed"),
    ]
);

fn norm(x: Draw, axis: i32, epsilon: f32) -> NormOp<Draw> {
    NormOp { x, out: out(), norm: out(), axis, epsilon, is_test: false }
}

/// Distance of two tensors, the p-norm of their difference: `out = (Σ |x - y|ᵖ)^(1 / p)`, with broadcasting.
///
/// Infinite `p` and `p = 0` have the meaning that they have in `p_norm`.
#[register_op(grad = Composed, composed)]
pub struct Dist<V = Var> {
    /// Any shape.
    #[input]
    pub x: V,
    /// Any shape that broadcasts with the shape of `x`; at least one element in the broadcast shape if `p` is infinite.
    #[input]
    pub y: V,
    /// One number, `[]`.
    #[output]
    pub out: V,
    /// `p`.
    #[attr(default = 2.0)]
    pub p: f32,
}
impl Infer for Dist<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.x.float()?;
        self.y.same_dtype(&self.x)?;
        let count = broadcast(&self.x, &self.y, -1)?.numel();
        let is_empty = count == 0 && self.p.is_infinite();
        self.x.require(!is_empty, || "at least one element to choose from is needed".into())?;
        self.out.set(self.x.dtype, []);
        Ok(())
    }
}
impl Composition for Dist<Expr> {
    fn compose(&mut self) {
        let x = (&self.x - &self.y).into();
        let porder = self.p;
        self.out =
            emit(PNorm { x, out: New, porder, axis: -1, epsilon: 0.0, keepdim: false, asvector: true }).out;
    }
}
autobwd::samples!(
    Dist,
    [
        dist(away_from(0.0, [2, 3]), between(-0.2, 0.2, [2, 3]), 2.0),
        dist(away_from(0.0, [2, 3, 4]), between(-0.2, 0.2, [3, 1]), 1.0),
        dist(away_from(0.0, [3]), between(-0.2, 0.2, [2, 1]), 3.0),
        dist(away_from(0.0, []), between(-0.2, 0.2, [4]), 0.0),
        dist(distinct([2, 3]), between(-0.02, 0.02, [2, 3]), f32::INFINITY),
        dist(distinct([2, 3]), between(-0.02, 0.02, [3]), f32::NEG_INFINITY),
        dist(uniform([0, 3]), uniform([3]), 2.0),
        dist(uniform([0, 3]), uniform([3]), f32::INFINITY)
            .fails("`X`: at least one element to choose from is needed"),
        dist(uniform([2, 3]), uniform([2]), 2.0).fails("`Y`: a shape that broadcasts with [2, 3]"),
        dist(uniform([2]), integers_below(9, [2]), 2.0).fails("`Y`: dtype int64 does not match"),
        dist(integers_below(9, [2]), integers_below(9, [2]), 2.0)
            .fails("`X`: floating point numbers are needed"),
    ]
);

fn dist(x: Draw, y: Draw, p: f32) -> Dist<Draw> {
    Dist { x, y, out: out(), p }
}

/// Scales the slices of an axis whose p-norm is too large:
/// `out[i] = x[i] * max_norm / ‖x[i]‖` where `‖x[i]‖ > max_norm`, else `x[i]`.
#[register_op(grad = Composed, composed)]
pub struct Renorm<V = Var> {
    /// At least one dimension.
    #[input]
    pub x: V,
    /// Same shape as `x`.
    #[output]
    pub out: V,
    /// The order of the norm.
    #[attr(above = 0.0)]
    pub p: f32,
    /// The dimension that numbers the slices; negative counts from the end.
    #[attr]
    pub axis: i32,
    /// The largest norm.
    #[attr(min = 0.0)]
    pub max_norm: f32,
}
impl Infer for Renorm<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.x.float()?;
        self.x.axis("axis", self.axis.into())?;
        finite("p", self.p)?;
        finite("max_norm", self.max_norm)?;
        self.out.like(&self.x);
        Ok(())
    }
}
impl Composition for Renorm<Expr> {
    fn compose(&mut self) {
        let (x, most) = (&self.x, f64::from(self.max_norm));
        let rank = x.dims().len() as i32;
        let axis = if self.axis < 0 { self.axis + rank } else { self.axis };
        let others: Vec<i32> = (0..rank).filter(|other| *other != axis).collect();
        let rows = match rank {
            1 => x.unsqueeze(&[1]),
            _ => x.transpose(&[&[axis], &others[..]].concat()).flatten(1, -1),
        };
        let (porder, epsilon, keepdim) = (self.p, 0.0, false);
        let norm =
            emit(PNorm { x: rows.into(), out: New, porder, axis: 1, epsilon, keepdim, asvector: false });
        let norm = if others.is_empty() { norm.out } else { norm.out.unsqueeze(&others) };
        let limit = like(&norm, most);
        let is_large = norm.greater_than(&limit);
        let ones = like(&norm, 1.0);
        // The divisor of the others is not 0 either.
        let divisor = is_large.where_cond(&norm, &ones);
        let factor = is_large.where_cond(&(limit / divisor), &ones);
        self.out = x * factor;
    }
}
autobwd::samples!(
    Renorm,
    [
        renorm(given([2, 3], [0.5, -0.25, 0.125, 2.0, -1.0, 3.0]), 2.0, 0, 1.5),
        renorm(away_from(0.0, [2, 3, 4]), 1.0, 1, 2.0),
        renorm(away_from(0.0, [2, 3]), 3.0, -1, 0.25),
        renorm(away_from(0.0, [3]), 2.0, 0, 0.25),
        renorm(given([2, 2], [0.0, 0.0, 1.0, 3.0]), 2.0, 0, 1.0).not_a_derivative("the norm has none at 0"),
        renorm(uniform([0, 3]), 2.0, 0, 1.0),
        renorm(uniform([3, 0]), 2.0, 0, 1.0),
        renorm(uniform([2, 3]), 2.0, 2, 1.0).fails("attribute `axis` = 2"),
        renorm(uniform([2, 3]), 0.0, 0, 1.0).fails("attribute `p`"),
        renorm(uniform([2, 3]), f32::INFINITY, 0, 1.0).fails("attribute `p`: inf is no finite number"),
        renorm(uniform([2, 3]), 2.0, 0, -1.0).fails("attribute `max_norm`"),
        renorm(uniform([2, 3]), 2.0, 0, f32::INFINITY).fails("attribute `max_norm`: inf is no finite number"),
        renorm(integers_below(9, [2]), 2.0, 0, 1.0).fails("`X`: floating point numbers are needed"),
    ]
);

fn renorm(x: Draw, p: f32, axis: i32, max_norm: f32) -> Renorm<Draw> {
    Renorm { x, out: out(), p, axis, max_norm }
}
