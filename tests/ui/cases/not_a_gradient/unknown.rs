use autobwd::{Float, Pointwise, Var, register_op};

#[register_op(grad = SquareGrad, pointwise)]
pub struct Square<V = Var> {
    #[input]
    pub x: V,
    #[output]
    pub out: V,
}
impl<F: Float> Pointwise for Square<F> {
    fn eval(&mut self) {
        self.out = self.x * self.x;
    }
}

fn main() {}
