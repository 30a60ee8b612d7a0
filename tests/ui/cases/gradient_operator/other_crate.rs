use autobwd::{Float, NoGrad, Pointwise, Var, register_op};
use autobwd_renamed::ScaledSquare;

#[register_op(grad_of = ScaledSquare, grad = NoGrad, pointwise)]
pub struct ScaledSquareGrad<V = Var> {
    pub x: V,
    pub dy: V,
    #[output]
    pub dx: V,
    pub scale: f64,
}
impl<F: Float> Pointwise for ScaledSquareGrad<F> {
    fn eval(&mut self) {}
}

fn main() {}
