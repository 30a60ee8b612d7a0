//! Generated code passes strict lints.
#![forbid(unsafe_code)]
#![deny(warnings, missing_docs, unused_qualifications, unreachable_pub)]

use autobwd::{Float, NoGrad, Pointwise, Var, op::Op, register_op};

/// `dx = 2 x · dout`
#[register_op(grad = NoGrad, name = "strict_square_grad", pointwise, broadcast)]
pub struct SquareGrad<V = Var> {
    /// Input of the forward operator.
    #[input("X")]
    pub x: V,
    /// Gradient of its output.
    #[input("Out@GRAD")]
    pub dout: V,
    /// Gradient of its input.
    #[output("X@GRAD", inplace = dout, like = x)]
    pub dx: V,
}
impl<F: Float> Pointwise for SquareGrad<F> {
    fn eval(&mut self) {
        self.dx = self.x * 2.0 * self.dout;
    }
}

#[test]
fn generated_code_passes_strict_lints() {
    assert_eq!(SquareGrad::SCHEMA.outputs[0].like, Some("X"));
}
