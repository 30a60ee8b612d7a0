//! Logical operators.

use crate::{
    Bool, Buf, Cx, DType, Element, Float, Infer, Kernel, Meta, Pointwise, Result, Var, ZeroGrad, register_op,
    sample::*, with_dtype,
};

use super::{broadcast, zip_broadcast};

/// Whether an element counts as true: it is not 0. NaN is true.
fn holds<T: Element>(x: T) -> bool {
    x != T::default()
}

/// The same for a lane, as 1 and 0.
#[inline(always)]
fn truth<F: Float>(x: F) -> F {
    F::select(x.equals(F::from(0.0)), F::from(0.0), F::from(1.0))
}

/// Shape rule, kernel, formula and sample rows of an operator on two truth values.
macro_rules! logical {
    ($op:ident, $by:tt, |$x:ident, $y:ident| $formula:expr) => {
        impl Infer for $op<Meta> {
            fn infer(&mut self) -> Result<()> {
                self.y.same_dtype(&self.x)?;
                self.out.set(DType::Bool, broadcast(&self.x, &self.y, -1)?);
                Ok(())
            }
        }
        impl Kernel for $op<Buf<'_>> {
            fn run(&mut self, cx: &Cx) -> Result<()> {
                let $op { x, y, out } = self;
                with_dtype!(x.dtype(), T => {
                    zip_broadcast(cx, (x, y), out, -1, |x: T, y: T| Bool::from(holds(x) $by holds(y)))
                })
            }
        }
        impl<F: Float> Pointwise for $op<F> {
            #[inline(always)]
            fn eval(&mut self) {
                let ($x, $y) = (truth(self.x), truth(self.y));
                self.out = $formula;
            }
        }
        crate::samples!(
            $op,
            [
                $op {
                    x: given([4], [0.0, 0.0, 1.0, 1.0]).of(DType::Bool),
                    y: given([4], [0.0, 1.0, 0.0, 1.0]).of(DType::Bool),
                    out: out()
                },
                $op { x: booleans([2, 3, 4]), y: booleans([3, 1]), out: out() },
                $op { x: booleans([]), y: booleans([2, 3]), out: out() },
                $op {
                    x: given([5], [0.0, -0.5, 0.0, f64::NAN, 3.0]),
                    y: given([5], [-0.0, 0.0, -7.0, 1.0, 0.0]),
                    out: out()
                },
                $op { x: integers_below(3, [2, 3]), y: integers_below(3, [3]), out: out() },
                $op {
                    x: integers_below(3, [4]).of(DType::I32),
                    y: integers_below(3, [4]).of(DType::I32),
                    out: out()
                },
                $op { x: booleans([3]), y: integers_below(2, [3]), out: out() }.fails("`Y`: dtype int64 does not match bool of `X`"),
                $op { x: booleans([2, 3]), y: booleans([4]), out: out() }.fails("`Y`: a shape that broadcasts with [2, 3] of `X`"),
            ]
        );
    };
}

fn booleans<const N: usize>(dims: [usize; N]) -> Draw {
    integers_below(2, dims).of(DType::Bool)
}

/// Logical and: `out = x & y`, broadcast.
#[register_op(grad = ZeroGrad, pointwise, kernel, broadcast, infallible, any_dtype)]
pub struct LogicalAnd<V = Var> {
    /// Any shape, any dtype; values other than 0 are true.
    #[input]
    pub x: V,
    /// Same dtype, any shape that broadcasts with the shape of `x`.
    #[input]
    pub y: V,
    /// Bools in the broadcast shape.
    #[output]
    pub out: V,
}
logical!(LogicalAnd, &, |x, y| x * y);

/// Logical or: `out = x | y`, broadcast.
#[register_op(grad = ZeroGrad, pointwise, kernel, broadcast, infallible, any_dtype)]
pub struct LogicalOr<V = Var> {
    /// Any shape, any dtype; values other than 0 are true.
    #[input]
    pub x: V,
    /// Same dtype, any shape that broadcasts with the shape of `x`.
    #[input]
    pub y: V,
    /// Bools in the broadcast shape.
    #[output]
    pub out: V,
}
logical!(LogicalOr, |, |x, y| x.max(y));

/// Logical exclusive or: `out = x ^ y`, broadcast.
#[register_op(grad = ZeroGrad, pointwise, kernel, broadcast, infallible, any_dtype)]
pub struct LogicalXor<V = Var> {
    /// Any shape, any dtype; values other than 0 are true.
    #[input]
    pub x: V,
    /// Same dtype, any shape that broadcasts with the shape of `x`.
    #[input]
    pub y: V,
    /// Bools in the broadcast shape.
    #[output]
    pub out: V,
}
logical!(LogicalXor, ^, |x, y| (x - y).abs());

/// Logical not: `out = !x`.
#[register_op(grad = ZeroGrad, pointwise, kernel, infallible, any_dtype)]
pub struct LogicalNot<V = Var> {
    /// Any shape, any dtype; values other than 0 are true.
    #[input]
    pub x: V,
    /// Bools in the shape of `x`.
    #[output]
    pub out: V,
}
impl Infer for LogicalNot<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.out.set(DType::Bool, self.x.dims.clone());
        Ok(())
    }
}
impl Kernel for LogicalNot<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        with_dtype!(self.x.dtype(), T => {
            let pairs = self.out.slice_mut::<Bool>()?.iter_mut().zip(self.x.slice::<T>()?);
            pairs.for_each(|(out, x)| *out = (!holds(*x)).into());
            Ok(())
        })
    }
}
impl<F: Float> Pointwise for LogicalNot<F> {
    fn eval(&mut self) {
        self.out = F::from(1.0) - truth(self.x);
    }
}
crate::samples!(
    LogicalNot,
    [
        LogicalNot { x: given([2], [0.0, 1.0]).of(DType::Bool), out: out() },
        LogicalNot { x: booleans([]), out: out() },
        LogicalNot { x: given([5], [0.0, -0.0, -0.5, 2.0, f64::NAN]), out: out() },
        LogicalNot { x: integers_below(3, [2, 3]), out: out() },
        LogicalNot { x: integers_below(3, [4]).of(DType::U8), out: out() },
    ]
);
