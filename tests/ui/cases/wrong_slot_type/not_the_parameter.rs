use autobwd::{NoGrad, Tensor, Var, register_op};

#[register_op(grad = NoGrad)]
pub struct Square<V = Var> {
    #[input]
    pub x: Tensor,
    #[output]
    pub out: V,
}

fn main() {}
