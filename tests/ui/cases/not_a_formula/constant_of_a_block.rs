use autobwd::{BlockId, NoGrad, Var, register_op};

#[register_op(grad = NoGrad)]
pub struct Repeat<V = Var> {
    #[input]
    pub x: V,
    #[input(constant)]
    pub times: V,
    #[output]
    pub out: V,
    #[block]
    pub body: BlockId,
}

fn main() {}
