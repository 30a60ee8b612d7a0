use autobwd::{Composition, Expr, NoGrad, Var, register_op};

#[register_op(grad = NoGrad, composed)]
pub struct Swish<V = Var> {
    #[input]
    pub x: V,
    #[output]
    pub out: V,
}
impl Composition for Swish<Expr> {
    fn compose(&mut self) {
        self.out = &self.x + 1.0;
    }
}

fn main() {}
