//! Comparisons of two tensors of one dtype, which broadcast as in `elementwise_add`.

use half::{bf16, f16};

use crate::{
    Bool, Buf, Cx, DType, Element, Float, Infer, Kernel, Meta, Pointwise, Result, Var, ZeroGrad,
    numbers::SelectMask, register_op, sample::*, tensor::half_float::HalfFloat, with_dtype,
};

use super::{broadcast, zip_broadcast};

/// An element that can be ordered.
trait OrderedElement: Element {
    type Key: PartialOrd;
    fn key(self) -> Self::Key;
}
macro_rules! ordered {
    ($($t:ty => $key:ty, $by:expr);*) => {$(
        impl OrderedElement for $t {
            type Key = $key;
            #[inline(always)]
            fn key(self) -> $key {
                let by: fn($t) -> $key = $by;
                by(self)
            }
        }
    )*};
}
ordered!(
    Bool => bool, Bool::get;
    u8 => u8, |x| x;
    i32 => i32, |x| x;
    i64 => i64, |x| x;
    f16 => f32, HalfFloat::single;
    bf16 => f32, HalfFloat::single;
    f32 => f32, |x| x;
    f64 => f64, |x| x
);

/// A bool as formulas write it.
#[inline(always)]
fn one_where<F: Float>(mask: SelectMask<F>) -> F {
    F::select(mask, F::from(1.0), F::from(0.0))
}

/// A comparison: its struct, shape rule, kernel, formula and sample rows.
macro_rules! comparison {
    ($(#[doc = $doc:literal])* $op:ident, $holds:tt, |$x:ident, $y:ident| $formula:expr) => {
        $(#[doc = $doc])*
        #[register_op(grad = ZeroGrad, pointwise, kernel, broadcast, any_dtype)]
        pub struct $op<V = Var> {
            /// Any shape, any dtype.
            #[input]
            pub x: V,
            /// Same dtype, any shape that broadcasts with the shape of `x`.
            #[input]
            pub y: V,
            /// Bools in the broadcast shape.
            #[output]
            pub out: V,
            /// The dimension at which the operand of lower rank starts; -1 aligns the last dimensions.
            #[attr(default = -1, min = -1)]
            pub axis: i32,
        }
        impl Infer for $op<Meta> {
            fn infer(&mut self) -> Result<()> {
                self.y.same_dtype(&self.x)?;
                self.out.set(DType::Bool, broadcast(&self.x, &self.y, self.axis)?);
                Ok(())
            }
        }
        impl Kernel for $op<Buf<'_>> {
            fn run(&mut self, cx: &Cx) -> Result<()> {
                let $op { x, y, out, axis } = self;
                with_dtype!(x.dtype(), T => {
                    zip_broadcast(cx, (x, y), out, *axis, |x: T, y: T| Bool::from(x.key() $holds y.key()))
                })
            }
        }
        impl<F: Float> Pointwise for $op<F> {
            #[inline(always)]
            fn eval(&mut self) {
                let ($x, $y) = (self.x, self.y);
                self.out = $formula;
            }
        }
        const _: () = {
            fn row(x: Draw, y: Draw) -> $op<Draw> {
                $op { x, y, out: out(), axis: -1 }
            }
            crate::samples!(
                $op,
                [
                    row(
                        given([2, 3], [1.0, 2.0, 3.0, -1.0, -2.0, f64::NAN]),
                        given([2, 3], [1.0, 2.5, 2.0, -1.5, -2.0, f64::NAN])
                    ),
                    row(uniform([2, 3, 4]), uniform([3, 1])),
                    row(integers_below(3, [4]), integers_below(3, [3, 4])),
                    $op {
                        axis: 1,
                        ..row(integers_below(3, [2, 3, 4]).of(DType::I32), integers_below(3, [3]).of(DType::I32))
                    },
                    row(integers_below(2, [2, 1, 4]).of(DType::Bool), integers_below(2, [1, 3, 1]).of(DType::Bool)),
                    $op { axis: 0, ..row(integers_below(3, [2, 1]), integers_below(3, [2, 3, 4])) },
                    row(uniform([]), uniform([])),
                    row(uniform([0, 3]), uniform([3])),
                    row(uniform([2, 3]), uniform([4])).fails("`Y`: a shape that broadcasts with [2, 3] of `X`"),
                    $op { axis: 2, ..row(uniform([2, 3, 4]), uniform([3])) }.fails("`Y`: a shape that broadcasts with [2, 3, 4] of `X`"),
                    row(integers_below(2, [3]), uniform([3])).fails("does not match int64 of `X`"),
                ]
            );
        };
    };
}

comparison!(
    /// `out = x < y`, broadcast; false where either is NaN.
    LessThan, <, |x, y| one_where::<F>(y.gt(x))
);
comparison!(
    /// `out = x <= y`, broadcast; false where either is NaN.
    LessEqual, <=, |x, y| one_where::<F>(y.gt(x)) + one_where::<F>(y.equals(x))
);
comparison!(
    /// `out = x > y`, broadcast; false where either is NaN.
    GreaterThan, >, |x, y| one_where::<F>(x.gt(y))
);
comparison!(
    /// `out = x >= y`, broadcast; false where either is NaN.
    GreaterEqual, >=, |x, y| one_where::<F>(x.gt(y)) + one_where::<F>(x.equals(y))
);
comparison!(
    /// `out = x == y`, broadcast; false where either is NaN.
    Equal, ==, |x, y| one_where::<F>(x.equals(y))
);
comparison!(
    /// `out = x != y`, broadcast; true where either is NaN.
    NotEqual, !=, |x, y| F::from(1.0) - one_where::<F>(x.equals(y))
);
