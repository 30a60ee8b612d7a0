//! Maximum and minimum over dimensions, whose ties share the gradient evenly.
//!
//! NaN propagates: it counts as larger and as smaller than all numbers.

use autobwd::{
    Buf, Cx, DType, GradCx, GradRule, Infer, Kernel, Meta, Result, Var, check::*, op::with_float, register_op,
};

use super::{
    ReduceAttrs, ReduceSum,
    min_max::{extreme_grad_grad, extreme_samples},
    tiling::in_result_dtype,
};
use crate::{elementwise::ElementwiseMul, fill::FillAnyLike, kernel_helpers::converted_bytes};

/// Several extreme elements share the gradient.
fn shared(tie: Sample) -> Sample {
    tie.not_a_derivative("several share the gradient, which jumps next to the tie")
}

/// The scratch memory of [`ReduceAttrs::share_back`], in bytes.
fn share_back_bytes(x: &Buf<'_>, dout: &Buf<'_>) -> usize {
    converted_bytes(x, dout.dtype(), 2).saturating_add(dout.numel().saturating_mul(dout.dtype().size()))
}

impl ReduceAttrs {
    /// `dx = dout / n` where `x` is one of `n` extreme elements, else 0.
    fn share_back(&self, cx: &Cx, [x, out, dout]: [&Buf<'_>; 3], dx: &mut Buf<'_>) -> Result<()> {
        let (cut, dout_dtype) = (self.cut(x), dout.dtype());
        with_float!(dout, T => {
            let (out, dout) = (out.slice::<T>()?, dout.slice::<T>()?);
            let converted = if x.dtype() == dout_dtype { 0 } else { 2 * x.numel() };
            cx.scratch(dout.len() + converted, |memory| {
                let (shares, converted) = memory.split_at_mut(dout.len());
                in_result_dtype(cx, x, dx, converted, |x, dx| {
                    cut.share(cx, x, (out, dout), shares);
                    cut.put_back(cx, x, (out, shares), dx);
                    Ok(())
                })
            })
        })
    }
}

/// Maximum over dimensions, whose gradient ties share: `out = max(x)`. On a tie of `n` elements, each gets `1 / n` of the
/// gradient.
#[register_op(grad = ReduceAmaxGrad)]
pub struct ReduceAmax<V = Var> {
    /// At least one element for each element of the result.
    #[input]
    pub x: V,
    /// `x` without the reduced dimensions, or with 1 in their place if `keep_dim`.
    #[output]
    pub out: V,
    /// Which dimensions are reduced.
    #[attrs]
    pub reduce: ReduceAttrs,
}
impl Infer for ReduceAmax<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.reduce.infer_extreme(&self.x, &mut self.out)
    }
}
impl Kernel for ReduceAmax<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        self.reduce.pick::<true>(cx, &self.x, &mut self.out)
    }

    fn scratch_bytes(&self, _: usize) -> usize {
        converted_bytes(&self.x, self.out.dtype(), 1)
    }
}
extreme_samples!(ReduceAmax, shared);

/// `dx = dout / n` where `x = out`, for `n` such elements of each result; else 0.
#[register_op(grad_of = ReduceAmax, grad = ReduceAmaxGradGrad, inferred)]
pub struct ReduceAmaxGrad<V = Var> {
    pub x: V,
    pub out: V,
    pub dout: V,
    #[output]
    pub dx: V,
    #[attrs]
    pub reduce: ReduceAttrs,
}
impl Kernel for ReduceAmaxGrad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        self.reduce.share_back(cx, [&self.x, &self.out, &self.dout], &mut self.dx)
    }

    fn scratch_bytes(&self, _: usize) -> usize {
        share_back_bytes(&self.x, &self.dout)
    }
}

/// `ddout` = the mean of `ddx` over `x = out`.
#[derive(Debug)]
pub struct ReduceAmaxGradGrad;
extreme_grad_grad!(ReduceAmaxGradGrad, ReduceAmaxGrad);

/// Minimum over dimensions, whose gradient ties share: `out = min(x)`. On a tie of `n` elements, each gets `1 / n` of the
/// gradient.
#[register_op(grad = ReduceAminGrad)]
pub struct ReduceAmin<V = Var> {
    /// At least one element for each element of the result.
    #[input]
    pub x: V,
    /// `x` without the reduced dimensions, or with 1 in their place if `keep_dim`.
    #[output]
    pub out: V,
    /// Which dimensions are reduced.
    #[attrs]
    pub reduce: ReduceAttrs,
}
impl Infer for ReduceAmin<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.reduce.infer_extreme(&self.x, &mut self.out)
    }
}
impl Kernel for ReduceAmin<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        self.reduce.pick::<false>(cx, &self.x, &mut self.out)
    }

    fn scratch_bytes(&self, _: usize) -> usize {
        converted_bytes(&self.x, self.out.dtype(), 1)
    }
}
extreme_samples!(ReduceAmin, shared);

/// `dx = dout / n` where `x = out`, for `n` such elements of each result; else 0.
#[register_op(grad_of = ReduceAmin, grad = ReduceAminGradGrad, inferred)]
pub struct ReduceAminGrad<V = Var> {
    pub x: V,
    pub out: V,
    pub dout: V,
    #[output]
    pub dx: V,
    #[attrs]
    pub reduce: ReduceAttrs,
}
impl Kernel for ReduceAminGrad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        self.reduce.share_back(cx, [&self.x, &self.out, &self.dout], &mut self.dx)
    }

    fn scratch_bytes(&self, _: usize) -> usize {
        share_back_bytes(&self.x, &self.dout)
    }
}

/// `ddout` = the mean of `ddx` over `x = out`.
#[derive(Debug)]
pub struct ReduceAminGradGrad;
extreme_grad_grad!(ReduceAminGradGrad, ReduceAminGrad);
