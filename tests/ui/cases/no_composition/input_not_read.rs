use autobwd::{Composed, Composition, Expr, Float, NoGrad, Pointwise, Var, register_op};

#[register_op(grad = NoGrad, pointwise)]
pub struct Swish<V = Var> {
    #[input]
    pub x: V,
    #[output]
    pub out: V,
}
impl<F: Float> Pointwise for Swish<F> {
    fn eval(&mut self) {}
}
impl Composition for Swish<Expr> {
    fn compose(&mut self) {
        self.out = &self.x * 2.0;
    }
}
#[register_op(grad_of = Swish, grad = Composed, pointwise)]
pub struct SwishGrad<V = Var> {
    pub out: V,
    pub dout: V,
    #[output]
    pub dx: V,
}
impl<F: Float> Pointwise for SwishGrad<F> {
    fn eval(&mut self) {}
}

fn main() {}
