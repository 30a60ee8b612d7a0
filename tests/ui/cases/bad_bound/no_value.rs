use autobwd::{Attrs, Derived, Float, Pointwise, Var, register_op};

#[register_op(grad = Derived, pointwise)]
pub struct Swish<V = Var> {
    #[input]
    pub x: V,
    #[output]
    pub out: V,
    #[attr(min = 2.0, max = 1.0)]
    pub beta: f64,
    #[attr(above = 3, below = 3)]
    pub rounds: i32,
}
impl<F: Float> Pointwise for Swish<F> {
    fn eval(&mut self) {
        self.out = self.x;
    }
}
#[derive(Attrs, Clone, Copy, Debug)]
pub struct Range {
    #[attr(max = -1, min = 1)]
    pub first: i64,
    #[attr(min = 1, max = 1)]
    pub only: i64,
}

fn main() {}
