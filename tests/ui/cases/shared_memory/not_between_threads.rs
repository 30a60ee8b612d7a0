use autobwd::{Attr, op::{AttrType, AttrValue}, Buf, Cx, Infer, Kernel, Meta, NoGrad, Result, Var, register_op};

#[derive(Clone, Debug)]
pub struct Shared(*const f32);
impl AttrValue for Shared {
    const TYPE: AttrType = AttrType::I64;
    fn into_attr(self) -> Attr {
        Attr::I64(0)
    }
    fn from_attr(_: &Attr) -> std::result::Result<Self, String> {
        Ok(Shared(std::ptr::null()))
    }
}

#[register_op(grad = NoGrad)]
pub struct Load<V = Var> {
    #[output]
    pub out: V,
    #[attr]
    pub from: Shared,
}
impl Infer for Load<Meta> {
    fn infer(&mut self) -> Result<()> {
        Ok(())
    }
}
impl Kernel for Load<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        Ok(())
    }
}

fn main() {}
