use autobwd::{Buf, Cx, Infer, Kernel, Meta, NoGrad, Result, Var, register_op};

#[register_op(grad = NoGrad)]
pub struct Tile<V = Var> {
    #[input]
    pub x: V,
    #[output]
    pub out: V,
    #[attr(default = [1.0, 2.0])]
    pub times: Vec<i64>,
}
impl Infer for Tile<Meta> {
    fn infer(&mut self) -> Result<()> {
        Ok(())
    }
}
impl Kernel for Tile<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        Ok(())
    }
}

fn main() {}
