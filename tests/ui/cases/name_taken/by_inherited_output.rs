use autobwd::{Float, NoGrad, Pointwise, Var, register_op};

#[register_op(grad = TwiceGrad, pointwise)]
pub struct Twice<V = Var> {
    #[input]
    pub x: V,
    #[output]
    pub out: V,
}
impl<F: Float> Pointwise for Twice<F> {
    fn eval(&mut self) {
        self.out = self.x * 2.0;
    }
}
#[register_op(grad = NoGrad, grad_of = Twice, pointwise)]
pub struct TwiceGrad<V = Var> {
    pub dout: V,
    #[output]
    pub dx: Option<V>,
    #[output]
    pub d_x: Option<V>,
}
impl<F: Float> Pointwise for TwiceGrad<F> {
    fn eval(&mut self) {}
}

fn main() {}
