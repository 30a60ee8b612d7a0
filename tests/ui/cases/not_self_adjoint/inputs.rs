use autobwd::{Float, Pointwise, Var, op::SelfAdjoint, register_op};

#[register_op(grad = SelfAdjoint, pointwise)]
pub struct Masked<V = Var> {
    #[input]
    pub x: V,
    #[input]
    pub mask: V,
    #[output]
    pub out: V,
}
impl<F: Float> Pointwise for Masked<F> {
    fn eval(&mut self) {
        self.out = self.x * self.mask;
    }
}

fn main() {}
