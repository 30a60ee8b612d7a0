use autobwd::{NoGrad, Var, register_op};

#[register_op(grad = NoGrad)]
pub struct Square<V: Clone = Var> {
    #[input]
    pub x: V,
    #[output]
    pub out: V,
}

fn main() {}
