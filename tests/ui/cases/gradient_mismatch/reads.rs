use autobwd::{Float, NoGrad, Pointwise, Var, register_op};

#[register_op(grad = SquareGrad, pointwise)]
pub struct Square<V = Var> {
    #[input]
    pub x: V,
    #[output]
    pub out: V,
}
impl<F: Float> Pointwise for Square<F> {
    fn eval(&mut self) {}
}
#[register_op(grad = NoGrad, pointwise)]
pub struct SquareGrad<V = Var> {
    #[input("Y@GRAD")]
    pub dout: V,
    #[output("X@GRAD")]
    pub dx: V,
}
impl<F: Float> Pointwise for SquareGrad<F> {
    fn eval(&mut self) {}
}

fn main() {}
