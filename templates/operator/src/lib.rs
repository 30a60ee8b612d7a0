//! Operators for autobwd.

use autobwd::{Derived, Expr, Float, New, Pointwise, Var, check::*, emit, register_op};
// Links the operators of the library for users of this crate.
use autobwd_ops as _;

/// Soft cap: `out = cap · tanh(x / cap)`, close to `x` where `x` is small.
#[register_op(grad = Derived, pointwise)]
pub struct SoftCap<V = Var> {
    /// Any shape.
    #[input]
    pub x: V,
    /// Same shape as `x`.
    #[output(inplace = x)]
    pub out: V,
    /// The bound of the results.
    #[attr(default = 1.0, above = 0.0)]
    pub cap: f64,
}
impl<F: Float> Pointwise for SoftCap<F> {
    fn eval(&mut self) {
        let cap = F::from(self.cap);
        self.out = (self.x / cap).tanh() * cap;
    }
}
autobwd::samples!(
    SoftCap,
    [
        SoftCap { x: uniform([2, 3]), out: out(), cap: 1.0 },
        SoftCap { x: uniform([4]), out: out(), cap: 0.5 },
        SoftCap { x: uniform([4]), out: out(), cap: 0.0 }.fails("must be above 0, is 0"),
    ]
);

/// The soft cap of an expression. Fails for a cap that is not positive.
#[track_caller]
pub fn soft_cap(x: &Expr, cap: f64) -> Expr {
    emit(SoftCap { x: x.into(), out: New, cap }).out
}

#[cfg(test)]
mod tests {
    use autobwd::{Result, Tensor, eager};

    use super::*;

    #[test]
    fn large_numbers_are_capped() -> Result<()> {
        let x = eager().constant(Tensor::from_vec([2], vec![0.0_f32, 1e6])?);
        assert_eq!(soft_cap(&x, 2.0).tensor()?.slice::<f32>()?, [0.0, 2.0]);
        Ok(())
    }
}
