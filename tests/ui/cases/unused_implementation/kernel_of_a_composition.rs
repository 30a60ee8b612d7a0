use autobwd::{Buf, Composition, Cx, Expr, Kernel, NoGrad, Result, Var, register_op};

#[register_op(grad = NoGrad, composed)]
pub struct Swish<V = Var> {
    #[input]
    pub x: V,
    #[output(like = x)]
    pub out: V,
}
impl Composition for Swish<Expr> {
    fn compose(&mut self) {
        self.out = &self.x + 1.0;
    }
}
impl Kernel for Swish<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        Ok(())
    }
}

fn main() {}
