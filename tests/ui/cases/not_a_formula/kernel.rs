use autobwd::{NoGrad, Var, register_op};

#[register_op(grad = NoGrad, kernel)]
pub struct Swish<V = Var> {
    #[input]
    pub x: V,
    #[output]
    pub out: V,
}

fn main() {}
