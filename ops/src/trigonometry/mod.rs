//! Trigonometric and hyperbolic functions and their inverses, each defined by a formula.

mod circular;
mod hyperbolic;
mod inverse;

pub use circular::{Cos, CosGrad, CosGradGrad, Sin, SinGrad, SinGradGrad};
pub use hyperbolic::{Acosh, AcoshGrad, Asinh, AsinhGrad, Atanh, AtanhGrad, Cosh, CoshGrad, Sinh, SinhGrad};
pub use inverse::{Acos, AcosGrad, Asin, AsinGrad, Atan, Atan2, Atan2Grad, AtanGrad, Tan, TanGrad};

use autobwd::Float;

/// A function of one variable with its gradient operator: structs, formulas and samples.
macro_rules! function {
    (
        $(#[doc = $doc:literal])* $op:ident, |$x:ident| $out:expr,
        $(#[doc = $grad_doc:literal])* $grad:ident, |$at:ident, $dout:ident| $dx:expr,
        [$($row:expr),* $(,)?]
    ) => {
        $(#[doc = $doc])*
        #[register_op(grad = $grad, pointwise)]
        pub struct $op<V = Var> {
            /// Any shape.
            #[input]
            pub x: V,
            /// Same shape as `x`.
            #[output(inplace = x)]
            pub out: V,
        }
        impl<F: Float> Pointwise for $op<F> {
            #[inline(always)]
            fn eval(&mut self) {
                let $x = self.x;
                self.out = $out;
            }
        }
        autobwd::samples!($op, [$($op { x: $row, out: out() }),*]);

        $(#[doc = $grad_doc])*
        #[register_op(grad_of = $op, grad = Derived, pointwise)]
        pub struct $grad<V = Var> {
            pub x: V,
            pub dout: V,
            #[output(inplace = dout)]
            pub dx: V,
        }
        impl<F: Float> Pointwise for $grad<F> {
            #[inline(always)]
            fn eval(&mut self) {
                let ($at, $dout) = (self.x, self.dout);
                self.dx = $dx;
            }
        }
    };
}
use function;

/// An odd function at `x`, from its value at `|x|`; zeros keep their sign.
#[inline(always)]
fn odd<F: Float>(x: F, value: F) -> F {
    let zero = F::from(0.0);
    F::select(zero.gt(x), -value, F::select(x.equals(zero), x, value))
}
