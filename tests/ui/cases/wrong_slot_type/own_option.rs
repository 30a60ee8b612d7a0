use autobwd::{Buf, Cx, Infer, Kernel, Meta, NoGrad, Result, Var, register_op};

pub struct Option<T>(T);

#[register_op(grad = NoGrad)]
pub struct Square<V = Var> {
    #[input]
    pub x: Option<V>,
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
