//! An operator crate that depends on `autobwd-core` alone, under another name:
//! `bwd = { package = "autobwd-core", .. }`. The code that `#[register_op]` generates finds it by the name below.

extern crate bwd as autobwd;

use bwd::{Derived, Float, Pointwise, Var, register_op, sample::*};

/// `out = scale · x²`.
#[register_op(grad = Derived, pointwise)]
pub struct ScaledSquare<V = Var> {
    /// Any shape.
    #[input]
    pub x: V,
    /// Same shape as `x`.
    #[output(inplace = x)]
    pub out: V,
    /// The factor.
    #[attr(default = 1.0)]
    pub scale: f32,
}
impl<F: Float> Pointwise for ScaledSquare<F> {
    fn eval(&mut self) {
        self.out = self.x * F::from(self.scale) * self.x;
    }
}
bwd::samples!(
    ScaledSquare,
    [
        ScaledSquare { x: uniform([2, 3]), out: out(), scale: 1.0 },
        ScaledSquare { x: uniform([4]), out: out(), scale: -0.5 },
    ]
);
