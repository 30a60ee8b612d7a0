use autobwd::{Float, NoGrad, Pointwise, Var, register_op};

#[register_op(grad = NoGrad, pointwise)]
pub struct Descend<V = Var> {
    #[input]
    pub param: V,
    #[input(sparse)]
    pub grad: V,
    #[output]
    pub out: V,
}
impl<F: Float> Pointwise for Descend<F> {
    fn eval(&mut self) {
        self.out = self.param - self.grad;
    }
}

fn main() {}
