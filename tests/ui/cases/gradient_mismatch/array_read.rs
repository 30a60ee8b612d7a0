use autobwd::{Buf, Cx, Infer, Kernel, Meta, NoGrad, Result, Var, register_op};

#[register_op(grad = JoinGrad)]
pub struct Join<V = Var> {
    #[input(array)]
    pub x: V,
    #[output(array)]
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
    #[input("X")]
    pub x: V,
    #[input("Out@GRAD", array)]
    pub dout: V,
    #[output("X@GRAD", array)]
    pub dx: V,
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
