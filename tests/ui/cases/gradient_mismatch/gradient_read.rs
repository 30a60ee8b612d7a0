use autobwd::{Buf, Cx, Infer, Kernel, Meta, NoGrad, Result, Var, register_op};

#[register_op(grad = JoinGrad)]
pub struct Join<V = Var> {
    #[input]
    pub x: Vec<V>,
    #[output]
    pub out: V,
}
impl Infer for Join<Meta> {
    fn infer(&mut self) -> Result<()> {
        Ok(())
    }
}
impl Kernel for Join<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        Ok(())
    }
}
#[register_op(grad = NoGrad)]
pub struct JoinGrad<V = Var> {
    #[input("Out@GRAD")]
    pub dout: Vec<V>,
    #[output("X@GRAD")]
    pub dx: Vec<Option<V>>,
}
impl Infer for JoinGrad<Meta> {
    fn infer(&mut self) -> Result<()> {
        Ok(())
    }
}
impl Kernel for JoinGrad<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        Ok(())
    }
}

fn main() {}
