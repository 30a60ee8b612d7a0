use autobwd::{Infer, Meta, NoGrad, Result, Var, register_op};

#[register_op(grad = NoGrad)]
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

fn main() {}
