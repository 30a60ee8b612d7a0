//! Logarithm of a sum of powers.

use autobwd::{
    Buf, Composed, Composition, Cx, Expr, Infer, Kernel, Meta, New, Result, Var, check::*, emit,
    op::with_float, register_op,
};

use super::{ReduceAttrs, ReduceMax, ReduceSum, tiling::cut};
use crate::{
    Math,
    fill::FillZerosLike,
    kernel_helpers::{KernelFloat, add_up, wide},
};

/// Logarithm of the sum of powers over dimensions: `out = ln(Σ exp(x))`.
#[register_op(grad = LogsumexpGrad, infallible)]
pub struct Logsumexp<V = Var> {
    /// At least one element for each element of the result.
    #[input]
    pub x: V,
    /// `x` without the reduced dimensions, or with 1 in their place if `keepdim`.
    #[output]
    pub out: V,
    /// The dimensions to reduce; negative counts from the end, empty means all.
    #[attr(default = [0])]
    pub axis: Vec<i32>,
    /// Keep the number of dimensions.
    #[attr(default = false)]
    pub keepdim: bool,
    /// Reduce all dimensions; `axis` is ignored.
    #[attr(default = false)]
    pub reduce_all: bool,
}
impl<V> Logsumexp<V> {
    fn reduce(&self, keep: bool) -> ReduceAttrs {
        ReduceAttrs::over(self.axis.clone()).keep_dim(keep).reduce_all(self.reduce_all)
    }
}
impl Infer for Logsumexp<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.x.float()?;
        self.reduce(self.keepdim).infer_extreme(&self.x, &mut self.out)
    }
}
impl Kernel for Logsumexp<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let axes = self.axis.iter().map(|axis| (*axis).into());
        let cut = cut(&self.x, axes, self.reduce_all || self.axis.is_empty());
        with_float!(self.x, T => {
            let x = self.x.slice::<T>()?;
            cut.fold(cx, self.out.slice_mut::<T>()?, |i| {
                let terms = cut.terms_of(i).map(|at| wide(x[at]));
                let top = terms.clone().fold(f64::NEG_INFINITY, f64::max);
                // The difference of two infinities is NaN.
                let top = if top.is_finite() { top } else { 0.0 };
                T::of(libm::log(add_up(terms.map(|x| libm::exp(x - top)))) + top)
            });
            Ok(())
        })
    }
}
impl Composition for Logsumexp<Expr> {
    fn compose(&mut self) {
        let top = |keep: bool| {
            let top = emit(ReduceMax { x: (&self.x).into(), out: New, reduce: self.reduce(keep) }).out;
            let zeros = emit(FillZerosLike { x: (&top).into(), out: New }).out;
            // The difference of two infinities is NaN.
            top.isfinite().where_cond(&top, &zeros)
        };
        let powers = (&self.x - top(true)).exp();
        let sum = emit(ReduceSum { x: powers.into(), out: New, reduce: self.reduce(self.keepdim) }).out;
        self.out = sum.log() + top(self.keepdim);
    }
}
autobwd::samples!(
    Logsumexp,
    [
        logsumexp(uniform([2, 3, 4]), &[0]),
        Logsumexp { keepdim: true, ..logsumexp(uniform([2, 3, 4]), &[-1]) },
        logsumexp(uniform([2, 3, 4]), &[2, 0]),
        logsumexp(uniform([2, 3, 4]), &[1]),
        logsumexp(uniform([2, 3]), &[]),
        Logsumexp { reduce_all: true, ..logsumexp(uniform([2, 3]), &[0]) },
        logsumexp(uniform([]), &[0]),
        logsumexp(given([3], [90.0, 89.5, -90.0]), &[0]),
        logsumexp(given([3, 2], [f64::NEG_INFINITY, f64::NEG_INFINITY, 0.5, f64::INFINITY, 0.5, 0.25]), &[1])
            .not_a_derivative("it is infinite or undefined"),
        logsumexp(uniform([0, 3]), &[1]),
        logsumexp(uniform([0, 3]), &[0]).fails("`X`: at least one element to choose from is needed"),
        logsumexp(uniform([2, 3]), &[2]).fails("attribute `dim` = 2"),
        logsumexp(integers_below(9, [2, 3]), &[0]).fails("`X`: floating point numbers are needed"),
    ]
);

fn logsumexp(x: Draw, axis: &[i32]) -> Logsumexp<Draw> {
    Logsumexp { x, out: out(), axis: axis.to_vec(), keepdim: false, reduce_all: false }
}

/// `dx = dout * exp(x - out)`.
#[register_op(grad_of = Logsumexp, grad = Composed, inferred, infallible)]
pub struct LogsumexpGrad<V = Var> {
    pub x: V,
    pub out: V,
    pub dout: V,
    #[output]
    pub dx: V,
    pub axis: Vec<i32>,
    pub keepdim: bool,
    pub reduce_all: bool,
}
impl Kernel for LogsumexpGrad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let axes = self.axis.iter().map(|axis| (*axis).into());
        let cut = cut(&self.x, axes, self.reduce_all || self.axis.is_empty());
        with_float!(self.dout, T => {
            let results = (self.out.slice::<T>()?, self.dout.slice()?);
            cut.zip_back(cx, self.x.slice()?, results, self.dx.slice_mut()?, |x, out, dout| dout * KernelFloat::exp(x - out));
            Ok(())
        })
    }
}
