//! Comparisons of two tensors of one dtype, which broadcast as those of `elementwise_add`.

use autobwd::{
    Bool, Buf, Cx, DType, Element, Float, Infer, Kernel, Meta, Pointwise, Result, Var, ZeroGrad, check::*,
    register_op, with_dtype,
};

use crate::common::{broadcast, zip_broadcast};

/// An element as something that has an order.
trait Ordered: Element {
    type Key: PartialOrd;
    fn key(self) -> Self::Key;
}
macro_rules! ordered {
    ($($t:ty => $key:ty, $by:expr);*) => {$(
        impl Ordered for $t {
            type Key = $key;
            #[inline(always)]
            fn key(self) -> $key {
                let by: fn($t) -> $key = $by;
                by(self)
            }
        }
    )*};
}
ordered!(Bool => bool, Bool::get; u8 => u8, |x| x; i32 => i32, |x| x; i64 => i64, |x| x; f32 => f32, |x| x; f64 => f64, |x| x);

/// What a formula writes for a boolean.
#[inline(always)]
fn one_where<F: Float>(mask: F::Mask) -> F {
    F::select(mask, F::from(1.0), F::from(0.0))
}

/// Shape rule, kernel, formula and rows of a comparison.
macro_rules! comparison {
    ($op:ident, $holds:tt, |$x:ident, $y:ident| $formula:expr) => {
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
        autobwd::samples!(
            $op,
            [
                $op {
                    x: given([2, 3], [1.0, 2.0, 3.0, -1.0, -2.0, f64::NAN]),
                    y: given([2, 3], [1.0, 2.5, 2.0, -1.5, -2.0, f64::NAN]),
                    out: out(),
                    axis: -1
                },
                $op { x: uniform([2, 3, 4]), y: uniform([3, 1]), out: out(), axis: -1 },
                $op {
                    x: integers_below(3, [4]),
                    y: integers_below(3, [3, 4]),
                    out: out(),
                    axis: -1
                },
                $op {
                    x: integers_below(3, [2, 3, 4]).of(DType::I32),
                    y: integers_below(3, [3]).of(DType::I32),
                    out: out(),
                    axis: 1
                },
                $op {
                    x: integers_below(2, [2, 1, 4]).of(DType::Bool),
                    y: integers_below(2, [1, 3, 1]).of(DType::Bool),
                    out: out(),
                    axis: -1
                },
                $op { x: integers_below(3, [2, 1]), y: integers_below(3, [2, 3, 4]), out: out(), axis: 0 },
                $op { x: uniform([]), y: uniform([]), out: out(), axis: -1 },
                $op { x: uniform([0, 3]), y: uniform([3]), out: out(), axis: -1 },
                Sample::fails(
                    $op { x: uniform([2, 3]), y: uniform([4]), out: out(), axis: -1 },
                    "`Y`: a shape that broadcasts with [2, 3] of `X`"
                ),
                Sample::fails(
                    $op { x: uniform([2, 3, 4]), y: uniform([3]), out: out(), axis: 2 },
                    "`Y`: a shape that broadcasts with [2, 3, 4] of `X`"
                ),
                Sample::fails(
                    $op { x: integers_below(2, [3]), y: uniform([3]), out: out(), axis: -1 },
                    "does not match int64 of `X`"
                ),
            ]
        );
    };
}

/// `out = x < y`, broadcast; false where either is NaN.
#[register_op(grad = ZeroGrad, pointwise, kernel, broadcast)]
pub struct LessThan<V = Var> {
    /// Any shape, any dtype.
    #[input]
    pub x: V,
    /// Same dtype, any shape that broadcasts with that of `x`.
    #[input]
    pub y: V,
    /// Booleans in the shape that both broadcast to.
    #[output]
    pub out: V,
    /// Where the operand of lower rank starts; -1: it ends where the other does.
    #[attr(default = -1, min = -1)]
    pub axis: i32,
}
comparison!(LessThan, <, |x, y| one_where::<F>(y.gt(x)));

/// `out = x <= y`, broadcast; false where either is NaN.
#[register_op(grad = ZeroGrad, pointwise, kernel, broadcast)]
pub struct LessEqual<V = Var> {
    /// Any shape, any dtype.
    #[input]
    pub x: V,
    /// Same dtype, any shape that broadcasts with that of `x`.
    #[input]
    pub y: V,
    /// Booleans in the shape that both broadcast to.
    #[output]
    pub out: V,
    /// Where the operand of lower rank starts; -1: it ends where the other does.
    #[attr(default = -1, min = -1)]
    pub axis: i32,
}
comparison!(LessEqual, <=, |x, y| one_where::<F>(y.gt(x)) + one_where::<F>(y.equals(x)));

/// `out = x > y`, broadcast; false where either is NaN.
#[register_op(grad = ZeroGrad, pointwise, kernel, broadcast)]
pub struct GreaterThan<V = Var> {
    /// Any shape, any dtype.
    #[input]
    pub x: V,
    /// Same dtype, any shape that broadcasts with that of `x`.
    #[input]
    pub y: V,
    /// Booleans in the shape that both broadcast to.
    #[output]
    pub out: V,
    /// Where the operand of lower rank starts; -1: it ends where the other does.
    #[attr(default = -1, min = -1)]
    pub axis: i32,
}
comparison!(GreaterThan, >, |x, y| one_where::<F>(x.gt(y)));

/// `out = x >= y`, broadcast; false where either is NaN.
#[register_op(grad = ZeroGrad, pointwise, kernel, broadcast)]
pub struct GreaterEqual<V = Var> {
    /// Any shape, any dtype.
    #[input]
    pub x: V,
    /// Same dtype, any shape that broadcasts with that of `x`.
    #[input]
    pub y: V,
    /// Booleans in the shape that both broadcast to.
    #[output]
    pub out: V,
    /// Where the operand of lower rank starts; -1: it ends where the other does.
    #[attr(default = -1, min = -1)]
    pub axis: i32,
}
comparison!(GreaterEqual, >=, |x, y| one_where::<F>(x.gt(y)) + one_where::<F>(x.equals(y)));

/// `out = x == y`, broadcast; false where either is NaN.
#[register_op(grad = ZeroGrad, pointwise, kernel, broadcast)]
pub struct Equal<V = Var> {
    /// Any shape, any dtype.
    #[input]
    pub x: V,
    /// Same dtype, any shape that broadcasts with that of `x`.
    #[input]
    pub y: V,
    /// Booleans in the shape that both broadcast to.
    #[output]
    pub out: V,
    /// Where the operand of lower rank starts; -1: it ends where the other does.
    #[attr(default = -1, min = -1)]
    pub axis: i32,
}
comparison!(Equal, ==, |x, y| one_where::<F>(x.equals(y)));

/// `out = x != y`, broadcast; true where either is NaN.
#[register_op(grad = ZeroGrad, pointwise, kernel, broadcast)]
pub struct NotEqual<V = Var> {
    /// Any shape, any dtype.
    #[input]
    pub x: V,
    /// Same dtype, any shape that broadcasts with that of `x`.
    #[input]
    pub y: V,
    /// Booleans in the shape that both broadcast to.
    #[output]
    pub out: V,
    /// Where the operand of lower rank starts; -1: it ends where the other does.
    #[attr(default = -1, min = -1)]
    pub axis: i32,
}
comparison!(NotEqual, !=, |x, y| F::from(1.0) - one_where::<F>(x.equals(y)));
