use autobwd::{Float, NoGrad, Pointwise, Var, register_op};

#[register_op(grad = NoGrad, pointwise)]
pub struct Swish<V = Var> {
    #[input]
    pub x: V,
    #[output]
    pub out: V,
    #[attr(default = 1.0)]
    pub beta: f64,
}
impl<F: Float> Pointwise for Swish<F> {
    fn eval(&mut self) {}
}
#[register_op(grad_of = String, grad = NoGrad, pointwise)]
pub struct SwishGrad<V = Var> {
    pub dout: V,
    #[output]
    pub dx: V,
    pub beta: f64,
}
impl<F: Float> Pointwise for SwishGrad<F> {
    fn eval(&mut self) {}
}

fn main() {}
