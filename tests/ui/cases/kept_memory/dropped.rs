use autobwd::{Buf, Cx, Kernel, NoGrad, Result, Var, register_op};

#[register_op(grad = NoGrad)]
pub struct Same<V = Var> {
    #[input]
    pub x: V,
    #[output(like = x)]
    pub out: V,
}
impl Kernel for Same<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        self.out.copy_from(&self.x)
    }
}
impl<V> Drop for Same<V> {
    fn drop(&mut self) {
        println!("gone");
    }
}

fn main() {}
