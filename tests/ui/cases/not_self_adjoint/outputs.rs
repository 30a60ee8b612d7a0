use autobwd::{Float, Pointwise, Var, op::SelfAdjoint, register_op};

#[register_op(grad = SelfAdjoint, pointwise)]
pub struct Both<V = Var> {
    #[input]
    pub x: V,
    #[output]
    pub negative: V,
    #[output]
    pub double: V,
}
impl<F: Float> Pointwise for Both<F> {
    fn eval(&mut self) {
        self.negative = -self.x;
        self.double = self.x * 2.0;
    }
}

fn main() {}
