use autobwd::{Float, NoGrad, Pointwise, Var, register_op};

#[register_op(grad = NoGrad, pointwise)]
pub struct Scale<V = Var> {
    #[input]
    pub x: V,
    #[output]
    pub out: V,
    #[attr(default = 1)]
    pub scale: f64,
}
impl<F: Float> Pointwise for Scale<F> {
    fn eval(&mut self) {
        self.out = self.x * self.scale;
    }
}

fn main() {}
