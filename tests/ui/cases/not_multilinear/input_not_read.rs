use autobwd::{Float, Multilinear, NoGrad, Pointwise, Var, register_op};

#[register_op(grad = NoGrad, pointwise)]
pub struct Product<V = Var> {
    #[input]
    pub x: V,
    #[input]
    pub y: V,
    #[output]
    pub out: V,
}
impl<F: Float> Pointwise for Product<F> {
    fn eval(&mut self) {
        self.out = self.x * self.y;
    }
}
#[register_op(grad_of = Product, grad = Multilinear, pointwise)]
pub struct ProductGrad<V = Var> {
    pub dout: V,
    #[output]
    pub dx: V,
}
impl<F: Float> Pointwise for ProductGrad<F> {
    fn eval(&mut self) {
        self.dx = self.dout;
    }
}

fn main() {}
