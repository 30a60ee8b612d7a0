use autobwd::{Buf, Cx, Kernel, NoGrad, Result, Var, register_op};

#[register_op(grad = NoGrad)]
pub struct Square<V = Var> {
    #[input]
    pub x: V,
    #[output]
    pub out: V,
}
impl Kernel for Square<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        Ok(())
    }
}

fn main() {}
