use autobwd::{Derived, Float, Pointwise, Var, register_op};

#[register_op(grad = Derived, pointwise, decomposed)]
pub struct Double<V = Var> {
    #[input]
    pub x: V,
    #[output]
    pub out: V,
}
impl<F: Float> Pointwise for Double<F> {
    fn eval(&mut self) {
        self.out = self.x + self.x;
    }
}

fn main() {}
