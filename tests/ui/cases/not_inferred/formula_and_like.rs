use autobwd::{Buf, Cx, Float, Kernel, NoGrad, Pointwise, Result, Var, register_op};

#[register_op(grad = NoGrad, pointwise)]
pub struct Negative<V = Var> {
    #[input]
    pub x: V,
    #[output]
    pub out: V,
}
impl<F: Float> Pointwise for Negative<F> {
    fn eval(&mut self) {
        self.out = -self.x;
    }
}
#[register_op(grad_of = Negative, grad = NoGrad, pointwise, inferred)]
pub struct Formula<V = Var> {
    pub x: V,
    pub dout: V,
    #[output]
    pub dx: V,
}
impl<F: Float> Pointwise for Formula<F> {
    fn eval(&mut self) {
        self.dx = -self.dout;
    }
}
#[register_op(grad_of = Negative, grad = NoGrad, inferred)]
pub struct Like<V = Var> {
    pub x: V,
    pub dout: V,
    #[output(like = x)]
    pub dx: V,
}
impl Kernel for Like<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        Ok(())
    }
}

fn main() {}
