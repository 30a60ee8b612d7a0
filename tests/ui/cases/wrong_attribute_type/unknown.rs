use autobwd::{Float, NoGrad, Pointwise, Var, register_op};

#[register_op(grad = NoGrad, pointwise)]
pub struct Scale<V = Var> {
    #[input]
    pub x: V,
    #[output]
    pub out: V,
    #[attr]
    pub mode: Mode,
}
impl<F: Float> Pointwise for Scale<F> {
    fn eval(&mut self) {
        self.out = self.x * 0.5;
    }
}

fn main() {}
