use autobwd::{Float, NoGrad, Pointwise, Var, register_op};

#[register_op(grad = NoGrad, pointwise)]
pub struct Relu<V = Var> {
    #[input]
    pub x: V,
    #[output]
    pub out: V,
}
impl<F: Float> Pointwise for Relu<F> {
    fn eval(&mut self) {
        self.out = if self.x > 0.0 { self.x } else { F::from(0.0) };
    }
}

fn main() {}
