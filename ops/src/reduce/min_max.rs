//! Maximum and minimum over dimensions.
//!
//! NaN propagates: it counts as larger and as smaller than all numbers.

use autobwd::{
    Buf, Composition, Cx, DType, Expr, GradCx, GradRule, Infer, Kernel, Meta, New, Result, Var,
    check::*,
    emit,
    op::{with_float, with_signed},
    register_op,
};

use super::{
    ReduceAttrs, ReduceSum,
    tiling::{Reduce, in_result_dtype, with_result_dtype},
};
use crate::{
    Math,
    elementwise::ElementwiseMul,
    fill::FillAnyLike,
    kernel_helpers::{converted_bytes, elements},
    math::{in_dtype, like},
};

/// What several extreme elements get of the gradient.
#[derive(Clone, Copy)]
enum Ties {
    /// Each gets the whole.
    Whole,
    /// Each of `n` gets the `n`-th part.
    Shared,
}

impl Ties {
    /// Why the gradient at a tie is not a derivative.
    fn jump(self) -> &'static str {
        match self {
            Ties::Whole => "every one of several gets the whole gradient",
            Ties::Shared => "several share the gradient, which jumps next to the tie",
        }
    }

    /// The gradient of `x`: the elements' parts of `dout` where `x = out`, else 0.
    fn put_back(
        self,
        reduce: &ReduceAttrs,
        cx: &Cx,
        [x, out, dout]: [&Buf<'_>; 3],
        dx: &mut Buf<'_>,
    ) -> Result<()> {
        let (cut, dout_dtype) = (reduce.cut(x), dout.dtype());
        with_float!(dout, T => {
            let (out, dout) = (out.slice::<T>()?, dout.slice::<T>()?);
            let put_back = |x: &[T], parts: &[T], dx: &mut [T]| {
                cut.put_back(cx, x, (out, parts), dx);
                Ok(())
            };
            if let Ties::Whole = self {
                return with_result_dtype(cx, x, dx, |x, dx| put_back(x, dout, dx));
            }
            let converted = if x.dtype() == dout_dtype { 0 } else { 2 * x.numel() };
            cx.scratch(dout.len() + converted, |memory| {
                let (parts, converted) = memory.split_at_mut(dout.len());
                in_result_dtype(cx, x, dx, converted, |x, dx| {
                    cut.share(cx, x, (out, dout), parts);
                    put_back(x, parts, dx)
                })
            })
        })
    }

    /// The same in a composition.
    fn put_back_exprs(self, reduce: &ReduceAttrs, [x, out, dout]: [&Expr; 3]) -> Expr {
        let is_extreme = in_dtype(x, out.dtype()).equal(&reduce.kept(out, x));
        let parts = match self {
            Ties::Whole => reduce.spread(dout, x),
            Ties::Shared => {
                let marks = is_extreme.cast(dout.dtype());
                let count = emit(ReduceSum { x: marks.into(), out: New, reduce: reduce.unconverted() }).out;
                reduce.spread(&(dout / count), x)
            }
        };
        in_dtype(&is_extreme.where_cond(&parts, &like(&parts, 0.0)), x.dtype())
    }

    /// The scratch memory of [`put_back`](Ties::put_back), in bytes.
    fn scratch_bytes(self, x: &Buf<'_>, dout: &Buf<'_>) -> usize {
        let parts = match self {
            Ties::Whole => 0,
            Ties::Shared => dout.numel().saturating_mul(dout.dtype().size()),
        };
        converted_bytes(x, dout.dtype(), 2).saturating_add(parts)
    }
}

impl ReduceAttrs {
    pub(super) fn infer_extreme(&self, x: &Meta, out: &mut Meta) -> Result<()> {
        self.infer(x, out)?;
        let nothing = x.dims.numel() == 0 && out.dims.numel().get().is_some_and(|n| n > 0);
        x.require(!nothing, || "at least one element to choose from is needed".into())
    }

    /// Selects the largest or the smallest of the terms.
    fn pick<const LARGEST: bool>(&self, cx: &Cx, x: &Buf<'_>, out: &mut Buf<'_>) -> Result<()> {
        let cut = self.cut(x);
        with_signed!(out, T => elements::<T, _>(cx, x, |x| {
            T::pick(&cut, cx, x, out.slice_mut()?, |x, best| if LARGEST { x > best } else { x < best });
            Ok(())
        }))
    }
}

/// A reduction that selects the largest or smallest element, with its gradient operator and the gradient of that.
macro_rules! extreme {
    (
        $(#[doc = $doc:literal])* $op:ident, $largest:literal, $ties:expr,
        $(#[doc = $grad_doc:literal])* $grad:ident,
        $(#[doc = $rule_doc:literal])* $rule:ident
    ) => {
        $(#[doc = $doc])*
        #[register_op(grad = $grad, infallible, primitive)]
        pub struct $op<V = Var> {
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
        impl Infer for $op<Meta> {
            fn infer(&mut self) -> Result<()> {
                self.reduce.infer_extreme(&self.x, &mut self.out)
            }
        }
        impl Kernel for $op<Buf<'_>> {
            fn run(&mut self, cx: &Cx) -> Result<()> {
                self.reduce.pick::<$largest>(cx, &self.x, &mut self.out)
            }

            fn scratch_bytes(&self, _: usize) -> usize {
                converted_bytes(&self.x, self.out.dtype(), 1)
            }
        }
        const _: () = {
            fn row(x: Draw, reduce: ReduceAttrs) -> $op<Draw> {
                $op { x, out: out(), reduce }
            }
            autobwd::samples!(
                $op,
                [
                    row(
                        distinct([2, 3]).of(DType::F64),
                        ReduceAttrs::over([0]).converting(DType::F64, DType::F64)
                    ),
                    row(distinct([2, 3, 4]), ReduceAttrs::over([0])),
                    row(distinct([2, 3, 4]), ReduceAttrs::keeping([-1])),
                    row(distinct([2, 3, 4]), ReduceAttrs::over([1])),
                    row(distinct([2, 3, 4, 5]), ReduceAttrs::keeping([0, 2])),
                    row(distinct([3, 2, 9]), ReduceAttrs::over([2, 0])),
                    row(distinct([3, 70]), ReduceAttrs::over([0])),
                    row(distinct([2, 3]), ReduceAttrs::over([])),
                    row(distinct([2, 3]), ReduceAttrs::keeping([1]).reduce_all(true)),
                    row(distinct([]), ReduceAttrs::over([0])),
                    row(distinct([0, 3]), ReduceAttrs::over([1])),
                    row(given([4], [1.0, 2.0, 2.0, 1.0]), ReduceAttrs::over([0])).not_a_derivative($ties.jump()),
                    row(given([3, 2], [f64::NAN, 1.0, 2.0, 3.0, f64::NAN, 4.0]), ReduceAttrs::over([0]))
                        .not_a_derivative("NaN has none"),
                    row(distinct([0, 3]), ReduceAttrs::over([0]))
                        .fails("`X`: at least one element to choose from is needed"),
                    row(
                        given([2, 3], [3.0, -9.0, 4.0, 4.0, 0.0, -1.0]).of(DType::I32),
                        ReduceAttrs::over([1])
                    ),
                    row(integers_below(99, [2, 3, 4]), ReduceAttrs::keeping([0, 2])),
                    row(
                        integers_below(2, [2, 3]).of(DType::Bool),
                        ReduceAttrs::over([1]).out_dtype(DType::I32)
                    ),
                    row(
                        distinct([2, 3]).of(DType::F64),
                        ReduceAttrs::over([1]).converting(DType::F64, DType::F32)
                    )
                    .not_a_derivative("rounded to float32, a small step vanishes"),
                    row(integers_below(9, [0, 3]), ReduceAttrs::over([0]))
                        .fails("`X`: at least one element to choose from is needed"),
                    row(distinct([2, 3]), ReduceAttrs::over([2])).fails("attribute `dim` = 2"),
                ]
            );
        };

        $(#[doc = $grad_doc])*
        #[register_op(grad_of = $op, grad = $rule, inferred, infallible)]
        pub struct $grad<V = Var> {
            pub x: V,
            pub out: V,
            pub dout: V,
            #[output]
            pub dx: V,
            #[attrs]
            pub reduce: ReduceAttrs,
        }
        impl Kernel for $grad<Buf<'_>> {
            fn run(&mut self, cx: &Cx) -> Result<()> {
                $ties.put_back(&self.reduce, cx, [&self.x, &self.out, &self.dout], &mut self.dx)
            }

            fn scratch_bytes(&self, _: usize) -> usize {
                $ties.scratch_bytes(&self.x, &self.dout)
            }
        }

        impl Composition for $grad<Expr> {
            fn compose(&mut self) {
                self.dx = $ties.put_back_exprs(&self.reduce, [&self.x, &self.out, &self.dout]);
            }
        }

        $(#[doc = $rule_doc])*
        #[derive(Debug)]
        pub struct $rule;
        impl GradRule<$grad> for $rule {
            fn emit(fwd: &$grad, g: &mut GradCx<'_>) {
                let ddx = g.grad(fwd.dx);
                let Some(ddout) = g.wanted(fwd.dout) else { return };
                let $grad { x, out, dout, .. } = *fwd;
                let (ones, chosen, product) = (g.fresh("ones"), g.fresh("chosen"), g.fresh("product"));
                g.push(FillAnyLike { x: dout, out: ones, value: 1.0, dtype: None });
                g.push($grad { x, out, dout: ones, dx: chosen, reduce: fwd.reduce.clone() });
                g.push(ElementwiseMul { x: ddx, y: chosen, out: product, axis: -1 });
                g.push(ReduceSum { x: product, out: ddout, reduce: fwd.reduce.clone() });
            }
        }
    };
}

extreme!(
    /// Maximum over dimensions: `out = max(x)`. On a tie, every largest element gets the whole gradient, as in the
    /// reference; `reduce_amax` shares it.
    ReduceMax, true, Ties::Whole,
    /// `dx = dout` where `x = out`, including all ties; else 0.
    ReduceMaxGrad,
    /// `ddout` = the sum of `ddx` over `x = out`.
    ReduceMaxGradGrad
);

extreme!(
    /// Minimum over dimensions: `out = min(x)`. On a tie, every smallest element gets the whole gradient, as in the
    /// reference; `reduce_amin` shares it.
    ReduceMin, false, Ties::Whole,
    /// `dx = dout` where `x = out`, including all ties; else 0.
    ReduceMinGrad,
    /// `ddout` = the sum of `ddx` over `x = out`.
    ReduceMinGradGrad
);

extreme!(
    /// Maximum over dimensions, whose gradient ties share: `out = max(x)`. On a tie of `n` elements, each gets `1 / n` of
    /// the gradient.
    ReduceAmax, true, Ties::Shared,
    /// `dx = dout / n` where `x = out`, for `n` such elements of each result; else 0.
    ReduceAmaxGrad,
    /// `ddout` = the mean of `ddx` over `x = out`.
    ReduceAmaxGradGrad
);

extreme!(
    /// Minimum over dimensions, whose gradient ties share: `out = min(x)`. On a tie of `n` elements, each gets `1 / n` of
    /// the gradient.
    ReduceAmin, false, Ties::Shared,
    /// `dx = dout / n` where `x = out`, for `n` such elements of each result; else 0.
    ReduceAminGrad,
    /// `ddout` = the mean of `ddx` over `x = out`.
    ReduceAminGradGrad
);
