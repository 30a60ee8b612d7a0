use autobwd::{Attrs, Float, NoGrad, Pointwise, Var, register_op};

#[register_op(grad = NoGrad, pointwise)]
pub struct Swish<V = Var> {
    #[input]
    pub x: V,
    #[output]
    pub out: V,
    #[attrs(default)]
    pub slope: Slope,
}
#[derive(Attrs, Clone, Copy, Debug)]
pub struct Slope {
    #[attr]
    pub beta: f64,
}
impl<F: Float> Pointwise for Swish<F> {
    fn eval(&mut self) {}
}

fn main() {}
