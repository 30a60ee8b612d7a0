use autobwd::{Buf, Cx, Infer, Kernel, Meta, NoGrad, Result, Var, register_op};
use std::cell::RefCell;

thread_local!(static KEPT: RefCell<Option<Buf<'static>>> = const { RefCell::new(None) });

#[register_op(grad = NoGrad)]
pub struct Thief<V = Var> {
    #[input]
    pub x: V,
    #[output]
    pub out: Option<V>,
}
impl Infer for Thief<Meta> {
    fn infer(&mut self) -> Result<()> {
        Ok(())
    }
}
impl Kernel for Thief<Buf<'static>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        KEPT.set(self.out.take());
        Ok(())
    }
}

fn main() {}
