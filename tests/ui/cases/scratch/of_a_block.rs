use autobwd::{BlockId, NoGrad, Var, register_op};

#[register_op(grad = NoGrad)]
pub struct Repeat<V = Var> {
    #[input]
    pub x: V,
    #[output]
    pub out: V,
    #[scratch(like = x)]
    pub state: V,
    #[block]
    pub body: BlockId,
}

fn main() {}
