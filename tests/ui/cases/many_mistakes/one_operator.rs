use autobwd::{BlockId, Buf, Cx, Infer, Kernel, Meta, NoGrad, OpDesc, Result, Var, register_op};

#[register_op(grad = NoGrad, pointwise = true, broadcast, nmae = "square_v2")]
pub struct Square<V: Clone = Var> {
    #[input("", shape_onyl)]
    pub x: V,
    #[inptu]
    pub y: V,
    pub z: V,
    #[input]
    #[output]
    pub two: V,
    #[output(inplace = w)]
    pub out: Box<V>,
    #[attr(default = 1.0, min = 1, min = 2)]
    pub scale: f32,
    #[attr("scale")]
    pub other_scale: f32,
    #[block(default = 1)]
    pub body: BlockId,
}
impl Infer for Square<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.out.like(&self.x);
        Ok(())
    }
}
impl Kernel for Square<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        self.out.slice_mut::<f32>()?.fill(self.scale);
        Ok(())
    }
}

fn main() {
    let _ = |square: Square| OpDesc::from(square);
}
