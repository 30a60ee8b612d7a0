use autobwd::{NoGrad, Var, register_op};

#[register_op(grad = NoGrad)]
pub struct Square<V = Var> {
    #[input]
    pub x: Box<V>,
    #[output]
    pub out: V,
}

fn main() {}
