use autobwd::{Buf, Cx, Infer, Kernel, Meta, NoGrad, Result, Var, register_op};

#[register_op(grad = NoGrad)]
pub struct Negative<V = Var> {
    #[input]
    pub x: V,
    #[output]
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
#[register_op(grad_of = Negative, grad = NoGrad, inferred)]
pub struct NegativeGrad<V = Var> {
    pub dout: V,
    #[output]
    pub dx: V,
}
impl Kernel for NegativeGrad<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        Ok(())
    }
}
#[register_op(grad_of = Negative, grad = NoGrad, inferred)]
pub struct Written<V = Var> {
    pub x: V,
    pub dout: V,
    #[output]
    pub dx: V,
}
impl Infer for Written<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.dx.like(&self.x);
        Ok(())
    }
}
impl Kernel for Written<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        Ok(())
    }
}

fn main() {}
