use autobwd::{NoGrad, Var, register_op};

#[register_op(grad = NoGrad)]
pub struct Square<V = Var, W = Var> {
    #[input]
    pub x: V,
    #[output]
    pub out: W,
}

fn main() {}
