use autobwd::{Composed, Float, Pointwise, Var, register_op};

#[register_op(grad = Composed, pointwise)]
pub struct Swish<V = Var> {
    #[input]
    pub x: V,
    #[output]
    pub out: V,
}
impl<F: Float> Pointwise for Swish<F> {
    fn eval(&mut self) {}
}

fn main() {}
