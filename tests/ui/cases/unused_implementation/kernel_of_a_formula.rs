use autobwd::{Buf, Cx, Float, Kernel, NoGrad, Pointwise, Result, Var, register_op};

#[register_op(grad = NoGrad, pointwise)]
pub struct Square<V = Var> {
    #[input]
    pub x: V,
    #[output]
    pub out: V,
}
impl<F: Float> Pointwise for Square<F> {
    fn eval(&mut self) {
        self.out = self.x * self.x;
    }
}
impl Kernel for Square<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        Ok(())
    }
}

fn main() {}
