//! Tests for infinities and NaN, each defined by a formula.

use autobwd::{
    Buf, Cx, DType, Float, Infer, Kernel, Meta, Pointwise, Result, Var, ZeroGrad, check::*, op::with_float,
    register_op, tensor::Bool,
};

use crate::kernel_helpers::{PART, nth_part};

/// A test of each element: struct, shape rule, kernel, formula and samples.
macro_rules! test {
    ($(#[doc = $doc:literal])* $op:ident, $of_integers:literal, $holds:ident, |$x:ident| $formula:expr) => {
        $(#[doc = $doc])*
        #[register_op(grad = ZeroGrad, pointwise, kernel)]
        pub struct $op<V = Var> {
            /// Numbers of any shape.
            #[input]
            pub x: V,
            /// Bools in the shape of `x`.
            #[output]
            pub out: V,
        }
        impl Infer for $op<Meta> {
            fn infer(&mut self) -> Result<()> {
                self.x.signed()?;
                self.out.set(DType::Bool, self.x.dims.clone());
                Ok(())
            }
        }
        impl Kernel for $op<Buf<'_>> {
            fn run(&mut self, cx: &Cx) -> Result<()> {
                let out = self.out.slice_mut::<Bool>()?;
                if !self.x.dtype().is_float() {
                    out.fill(Bool::from($of_integers));
                    return Ok(());
                }
                with_float!(self.x, T => {
                    let x = self.x.slice::<T>()?;
                    cx.chunks_mut(out, PART, |part, out| {
                        let x = nth_part(x, part, out.len());
                        out.iter_mut().zip(x).for_each(|(out, x)| *out = Bool::from(x.$holds()));
                    });
                    Ok(())
                })
            }
        }
        impl<F: Float> Pointwise for $op<F> {
            fn eval(&mut self) {
                let $x = self.x;
                self.out = $formula;
            }
        }
        autobwd::samples!(
            $op,
            [
                $op {
                    x: given([5], [0.0, -1.5, f64::NAN, f64::INFINITY, f64::NEG_INFINITY]),
                    out: out()
                },
                $op { x: uniform([2, 3]), out: out() },
                $op { x: uniform([]), out: out() },
                $op { x: uniform([0, 3]), out: out() },
                $op { x: integers_below(3, [2, 3]), out: out() },
                $op { x: integers_below(3, [4]).of(DType::I32), out: out() },
                $op { x: integers_below(2, [2]).of(DType::Bool), out: out() }
                    .fails("`X`: signed or floating point numbers are needed"),
            ]
        );
    };
}

test!(
    /// `out = |x| < ∞`; false for NaN.
    IsfiniteV2, true, is_finite,
    |x| F::select(F::from(f64::INFINITY).gt(x.abs()), F::from(1.0), F::from(0.0))
);
test!(
    /// `out = |x| = ∞`
    IsinfV2, false, is_infinite,
    |x| F::select(x.abs().equals(F::from(f64::INFINITY)), F::from(1.0), F::from(0.0))
);
test!(
    /// Whether `x` is NaN, which does not equal itself: `out = x ≠ x`.
    IsnanV2, false, is_nan,
    |x| F::select(x.equals(x), F::from(0.0), F::from(1.0))
);
