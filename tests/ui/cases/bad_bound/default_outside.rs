use autobwd::{Derived, Float, Pointwise, Var, register_op};

#[register_op(grad = Derived, pointwise)]
pub struct Swish<V = Var> {
    #[input]
    pub x: V,
    #[output]
    pub out: V,
    #[attr(default = -1.0, above = 0.0)]
    pub beta: f32,
    #[attr(default = 4, min = 1, max = 3)]
    pub rounds: i32,
}
impl<F: Float> Pointwise for Swish<F> {
    fn eval(&mut self) {
        self.out = self.x;
    }
}

fn main() {}
