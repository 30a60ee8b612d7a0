use autobwd::{Float, Multilinear, Pointwise, Var, register_op};

#[register_op(grad = Multilinear, pointwise)]
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

fn main() {}
