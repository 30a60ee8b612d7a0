use autobwd::{Buf, Cx, Derived as Automatic, Infer, Kernel, Meta, Result, Var, register_op};

#[register_op(grad = Automatic)]
pub struct Square<V = Var> {
    #[input]
    pub x: V,
    #[output]
    pub out: V,
}
impl Infer for Square<Meta> {
    fn infer(&mut self) -> Result<()> {
        Ok(())
    }
}
impl Kernel for Square<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        Ok(())
    }
}

fn main() {}
