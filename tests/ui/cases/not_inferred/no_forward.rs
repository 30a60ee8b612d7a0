use autobwd::{Buf, Cx, Kernel, NoGrad, Result, Var, register_op};

#[register_op(grad = NoGrad, inferred)]
pub struct Negative<V = Var> {
    #[input]
    pub x: V,
    #[output]
    pub out: V,
}
impl Kernel for Negative<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        Ok(())
    }
}

fn main() {}
