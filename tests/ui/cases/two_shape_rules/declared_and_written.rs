use autobwd::{Buf, Cx, Infer, Kernel, Meta, NoGrad, Result, Var, register_op};

#[register_op(grad = NoGrad)]
pub struct Negative<V = Var> {
    #[input]
    pub x: V,
    #[output(like = x)]
    pub out: V,
}
impl Infer for Negative<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.out.like(&self.x);
        Ok(())
    }
}
impl Kernel for Negative<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        Ok(())
    }
}

fn main() {}
