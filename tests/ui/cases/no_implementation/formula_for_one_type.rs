use autobwd::{NoGrad, Pointwise, Var, register_op};

#[register_op(grad = NoGrad, pointwise)]
pub struct Square<V = Var> {
    #[input]
    pub x: V,
    #[output]
    pub out: V,
}
impl Pointwise for Square<f32> {
    fn eval(&mut self) {
        self.out = self.x * self.x;
    }
}

fn main() {}
