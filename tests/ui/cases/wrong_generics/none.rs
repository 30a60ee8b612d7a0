use autobwd::{NoGrad, Tensor, register_op};

#[register_op(grad = NoGrad)]
pub struct Square {
    #[input]
    pub x: Tensor,
    #[output]
    pub out: Tensor,
}

fn main() {}
