use autobwd::{BlockId, NoGrad, Var, register_op};

#[register_op(grad = NoGrad)]
pub struct Twice<V = Var> {
    #[input]
    pub x: V,
    #[output]
    pub out: V,
    #[block]
    pub body: BlockId,
}

fn main() {}
