//! Norms of vectors: `p_norm` and `frobenius_norm`.

use autobwd::{
    Buf, Composed, Composition, Cx, DType, Expr, Infer, Kernel, Meta, New, Result, Var, check::*, emit,
    op::with_float, register_op,
};

use super::{ReduceAttrs, ReduceMax, ReduceMin, ReduceSum, tiling::cut};
use crate::{
    Math,
    kernel_helpers::{KernelFloat, add_up, wide},
    math::like,
};

/// p-norm of the vectors along an axis: `out = (Σ |x|ᵖ)^(1 / p)`.
///
/// For `p = ∞`, the largest size of an element, for `p = -∞` the smallest; for `p = 0`, the number of elements that are
/// not 0. For `p = ±∞`, every one of several extreme elements gets the whole gradient.
#[register_op(grad = PNormGrad, infallible)]
pub struct PNorm<V = Var> {
    /// Any shape; at least one element along the axis if `p` is infinite.
    #[input]
    pub x: V,
    /// `x` without the axis, or with 1 in its place if `keepdim`.
    #[output]
    pub out: V,
    /// `p`.
    #[attr(default = 2.0)]
    pub porder: f32,
    /// The dimension; negative counts from the end.
    #[attr(default = -1)]
    pub axis: i32,
    /// Accepted for compatibility: it has no effect.
    #[attr(default = 1e-12)]
    pub epsilon: f32,
    /// Keep the number of dimensions.
    #[attr(default = false)]
    pub keepdim: bool,
    /// Take all elements as one vector; `axis` is ignored.
    #[attr(default = false)]
    pub asvector: bool,
}
impl<V> PNorm<V> {
    fn reduce(&self) -> ReduceAttrs {
        let axes = if self.asvector { vec![] } else { vec![self.axis] };
        ReduceAttrs::over(axes).keep_dim(self.keepdim)
    }
}
impl Infer for PNorm<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.x.float()?;
        // The reduction's error would name its own attribute.
        if !self.asvector && (self.x.rank() > 0 || !matches!(self.axis, -1 | 0)) {
            self.x.axis("axis", self.axis.into())?;
        }
        let reduce = self.reduce();
        match self.porder.is_infinite() {
            true => reduce.infer_extreme(&self.x, &mut self.out),
            false => reduce.infer(&self.x, &mut self.out),
        }
    }
}
impl Kernel for PNorm<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let axis = std::iter::once(self.axis.into());
        let (cut, p) = (cut(&self.x, axis, self.asvector), f64::from(self.porder));
        with_float!(self.x, T => {
            let x = self.x.slice::<T>()?;
            cut.fold(cx, self.out.slice_mut::<T>()?, |i| T::of(norm(cut.terms_of(i).map(|at| wide(x[at]).abs()), p)));
            Ok(())
        })
    }
}

/// The norm of a vector, from the sizes of its elements.
fn norm(sizes: impl Iterator<Item = f64>, p: f64) -> f64 {
    let larger = |a: f64, b: f64| if b > a || b.is_nan() { b } else { a };
    match p {
        0.0 => add_up(sizes.map(|x| if x == 0.0 { 0.0 } else { 1.0 })),
        1.0 => add_up(sizes),
        2.0 => add_up(sizes.map(|x| x * x)).sqrt(),
        f64::INFINITY => sizes.fold(0.0, larger),
        f64::NEG_INFINITY => -sizes.map(|x| -x).fold(f64::NEG_INFINITY, larger),
        p => libm::pow(add_up(sizes.map(|x| libm::pow(x, p))), 1.0 / p),
    }
}

/// `f(x)`, except where `x` is 0: there it is `value`, and its gradient is 0, which is infinite for a root.
fn flat_at_zero(x: &Expr, value: f64, f: impl FnOnce(&Expr) -> Expr) -> Expr {
    let is_zero = x.equal(&like(x, 0.0));
    let others = f(&is_zero.where_cond(&like(x, 1.0), x));
    is_zero.where_cond(&like(x, value), &others)
}

impl Composition for PNorm<Expr> {
    fn compose(&mut self) {
        let reduce = self.reduce();
        let sum = |x: Expr| emit(ReduceSum { x: x.into(), out: New, reduce: reduce.clone() }).out;
        let to_power = |x: &Expr, p: f64| {
            let at_zero = if p > 0.0 { 0.0 } else { f64::INFINITY };
            flat_at_zero(x, at_zero, |x| x.pow(&like(x, p)))
        };
        let (size, p) = (self.x.abs(), self.porder);
        self.out = match p {
            0.0 => sum(self.x.not_equal(&like(&self.x, 0.0)).cast(self.x.dtype())),
            1.0 => sum(size),
            2.0 => flat_at_zero(&sum(self.x.square()), 0.0, Math::sqrt),
            f32::INFINITY => emit(ReduceMax { x: size.into(), out: New, reduce }).out,
            f32::NEG_INFINITY => emit(ReduceMin { x: size.into(), out: New, reduce }).out,
            p => to_power(&sum(to_power(&size, p.into())), 1.0 / f64::from(p)),
        };
    }
}
autobwd::samples!(
    PNorm,
    [
        p_norm(uniform([2, 3, 4]), 2.0, 1),
        PNorm { keepdim: true, ..p_norm(away_from(0.0, [2, 3, 4]), 1.0, -1) },
        p_norm(distinct([2, 3, 4]), f32::INFINITY, 0),
        PNorm { keepdim: true, ..p_norm(distinct([2, 5]), f32::NEG_INFINITY, 1) },
        p_norm(away_from(0.0, [2, 3]), 3.0, -1),
        p_norm(away_from(0.0, [2, 3]), 0.5, 0),
        p_norm(away_from(0.0, [2, 3]), -2.0, 0),
        p_norm(away_from(0.0, [2, 3]), 0.0, 0),
        PNorm { asvector: true, ..p_norm(uniform([2, 3]), 2.0, 7) },
        PNorm { asvector: true, keepdim: true, epsilon: 0.5, ..p_norm(uniform([2, 3]), 2.0, 0) },
        p_norm(away_from(0.0, []), 2.0, -1),
        p_norm(some_zeros(), 2.0, 1).not_a_derivative(AT_ZERO),
        p_norm(some_zeros(), 3.0, 1).not_a_derivative(AT_ZERO),
        p_norm(some_zeros(), 0.5, 1).not_a_derivative(AT_ZERO),
        p_norm(some_zeros(), -2.0, 1).not_a_derivative(AT_ZERO),
        p_norm(some_zeros(), f32::INFINITY, 0).not_a_derivative(AT_ZERO),
        p_norm(uniform([0, 3]), 2.0, 1),
        p_norm(uniform([0, 3]), f32::INFINITY, 0).fails("`X`: at least one element to choose from is needed"),
        p_norm(uniform([2, 3]), 2.0, 2).fails("attribute `axis` = 2"),
        p_norm(integers_below(9, [2]), 2.0, 0).fails("`X`: floating point numbers are needed"),
    ]
);

const AT_ZERO: &str = "at 0, the norm has no derivative";

/// A vector of zeros, and one with a zero.
fn some_zeros() -> Draw {
    given([2, 2], [0.0, 0.0, 0.0, -0.75])
}

fn p_norm(x: Draw, porder: f32, axis: i32) -> PNorm<Draw> {
    PNorm { x, out: out(), porder, axis, epsilon: 1e-12, keepdim: false, asvector: false }
}

/// `dx = dout * sign(x) * (|x| / out) ^ (p - 1)`, 0 where `out` is 0.
///
/// For infinite `p`, `dx = dout * sign(x)` where `|x| = out`, including all ties, else 0; for `p = 0`, 0.
#[register_op(grad_of = PNorm, grad = Composed, inferred, infallible)]
pub struct PNormGrad<V = Var> {
    pub x: V,
    pub out: V,
    pub dout: V,
    #[output]
    pub dx: V,
    pub porder: f32,
    pub axis: i32,
    pub epsilon: f32,
    pub keepdim: bool,
    pub asvector: bool,
}
impl Kernel for PNormGrad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let axis = std::iter::once(self.axis.into());
        let (cut, p) = (cut(&self.x, axis, self.asvector), f64::from(self.porder));
        with_float!(self.dout, T => {
            let results = (self.out.slice::<T>()?, self.dout.slice()?);
            cut.zip_back(cx, self.x.slice()?, results, self.dx.slice_mut()?, |x, out, dout| {
                T::of(wide(dout) * slope(wide(x), wide(out), p))
            });
            Ok(())
        })
    }
}

/// The derivative of the norm `out` with respect to an element.
fn slope(x: f64, out: f64, p: f64) -> f64 {
    let sign = if x == 0.0 { 0.0 } else { x.signum() };
    if p == 0.0 || sign == 0.0 || out == 0.0 {
        0.0
    } else if p.is_infinite() {
        if x.abs() == out { sign } else { 0.0 }
    } else if p == 1.0 {
        sign
    } else if p == 2.0 {
        x / out
    } else {
        sign * libm::pow(x.abs() / out, p - 1.0)
    }
}

/// Norm over dimensions: `out = √(Σ x²)`.
#[register_op(grad = FrobeniusNormGrad, infallible)]
pub struct FrobeniusNorm<V = Var> {
    /// Any shape.
    #[input]
    pub x: V,
    /// `x` without the reduced dimensions, or with 1 in their place if `keep_dim`.
    #[output]
    pub out: V,
    /// Which dimensions are reduced.
    #[attrs]
    pub reduce: ReduceAttrs,
}
impl Infer for FrobeniusNorm<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.x.float()?;
        self.reduce.infer(&self.x, &mut self.out)?;
        self.out.same_dtype(&self.x)
    }
}
impl Kernel for FrobeniusNorm<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let cut = self.reduce.cut(&self.x);
        with_float!(self.x, T => {
            let x = self.x.slice::<T>()?;
            cut.fold(cx, self.out.slice_mut::<T>()?, |i| T::of(norm(cut.terms_of(i).map(|at| wide(x[at])), 2.0)));
            Ok(())
        })
    }
}
impl Composition for FrobeniusNorm<Expr> {
    fn compose(&mut self) {
        let reduce = self.reduce.clone();
        let sum = emit(ReduceSum { x: self.x.square().into(), out: New, reduce }).out;
        self.out = flat_at_zero(&sum, 0.0, Math::sqrt);
    }
}
autobwd::samples!(
    FrobeniusNorm,
    [
        frobenius_norm(uniform([2, 3, 4]), ReduceAttrs::over([0])),
        frobenius_norm(uniform([2, 3, 4]), ReduceAttrs::keeping([-1, 1])),
        frobenius_norm(uniform([2, 3]), ReduceAttrs::over([])),
        frobenius_norm(uniform([2, 3]), ReduceAttrs::over([0]).reduce_all(true)),
        frobenius_norm(
            uniform([2, 3]).of(DType::F64),
            ReduceAttrs::over([0]).converting(DType::F64, DType::F64)
        ),
        frobenius_norm(away_from(0.0, []), ReduceAttrs::over([])),
        frobenius_norm(uniform([0, 3]), ReduceAttrs::over([1])),
        frobenius_norm(some_zeros(), ReduceAttrs::over([1])).not_a_derivative(AT_ZERO),
        frobenius_norm(uniform([2, 3]), ReduceAttrs::over([2])).fails("attribute `dim` = 2"),
        frobenius_norm(uniform([2, 3]).of(DType::F64), ReduceAttrs::over([0]).out_dtype(DType::F32))
            .fails("`Out`: dtype float32 does not match"),
        frobenius_norm(integers_below(9, [2]), ReduceAttrs::over([0]))
            .fails("`X`: floating point numbers are needed"),
    ]
);

fn frobenius_norm(x: Draw, reduce: ReduceAttrs) -> FrobeniusNorm<Draw> {
    FrobeniusNorm { x, out: out(), reduce }
}

/// `dx = dout * x / out`, 0 where `out` is 0.
#[register_op(grad_of = FrobeniusNorm, grad = Composed, inferred, infallible)]
pub struct FrobeniusNormGrad<V = Var> {
    pub x: V,
    pub out: V,
    pub dout: V,
    #[output]
    pub dx: V,
    #[attrs]
    pub reduce: ReduceAttrs,
}
impl Kernel for FrobeniusNormGrad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let cut = self.reduce.cut(&self.x);
        with_float!(self.dout, T => {
            let results = (self.out.slice::<T>()?, self.dout.slice()?);
            cut.zip_back(cx, self.x.slice()?, results, self.dx.slice_mut()?, |x, out, dout| {
                T::of(wide(dout) * slope(wide(x), wide(out), 2.0))
            });
            Ok(())
        })
    }
}
impl Composition for FrobeniusNormGrad<Expr> {
    fn compose(&mut self) {
        let norm = self.reduce.kept(&self.out, &self.x);
        let divisor = norm.equal(&like(&norm, 0.0)).where_cond(&like(&norm, 1.0), &norm);
        self.dx = self.reduce.kept(&self.dout, &self.x) / divisor * &self.x;
    }
}
