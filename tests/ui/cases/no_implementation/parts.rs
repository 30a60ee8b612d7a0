use autobwd::{Buf, Cx, Infer, Kernel, Meta, NoGrad, Result, Var, register_op};

#[register_op(grad = NoGrad, decomposed)]
pub struct Total<V = Var> {
    #[input]
    pub x: Vec<V>,
    #[output]
    pub out: V,
}
impl Infer for Total<Meta> {
    fn infer(&mut self) -> Result<()> {
        Ok(())
    }
}
impl Kernel for Total<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        Ok(())
    }
}

fn main() {}
