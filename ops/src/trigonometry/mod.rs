//! Trigonometric and hyperbolic functions and their inverses, each defined by a formula.

mod circular;
mod hyperbolic;
mod inverse;

pub use circular::{Cos, CosGrad, CosGradGrad, Sin, SinGrad, SinGradGrad};
pub use hyperbolic::{Acosh, AcoshGrad, Asinh, AsinhGrad, Atanh, AtanhGrad, Cosh, CoshGrad, Sinh, SinhGrad};
pub use inverse::{Acos, AcosGrad, Asin, AsinGrad, Atan, Atan2, Atan2Grad, AtanGrad, Tan, TanGrad};

use autobwd::Float;

/// An odd function at `x`, from its value at `|x|`; zeros keep their sign.
#[inline(always)]
fn odd<F: Float>(x: F, value: F) -> F {
    let zero = F::from(0.0);
    F::select(zero.gt(x), -value, F::select(x.equals(zero), x, value))
}
