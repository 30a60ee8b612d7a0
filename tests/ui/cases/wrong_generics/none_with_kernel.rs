use autobwd::{Buf, Cx, Expr, Infer, Kernel, Meta, New, NoGrad, Result, emit, register_op};

#[register_op(grad = NoGrad)]
pub struct Square {
    #[input]
    pub x: V,
    #[output]
    pub out: V,
}
impl Infer for Square<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.out.like(&self.x);
        Ok(())
    }
}
impl Kernel for Square<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        self.out.copy_from(&self.x)
    }
}

pub fn square(x: &Expr) -> Result<Expr> {
    Ok(emit(Square { x: x.into(), out: New })?.out)
}

fn main() {}
