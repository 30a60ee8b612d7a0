use autobwd::{BlockId, NoGrad, Var, register_op};

#[register_op(grad = NoGrad, composed, pointwise)]
pub struct Formula<V = Var> {
    #[input]
    pub x: V,
    #[output]
    pub out: V,
}

#[register_op(grad = NoGrad, composed)]
pub struct Block<V = Var> {
    #[input]
    pub x: V,
    #[output]
    pub out: V,
    #[block]
    pub body: BlockId,
}

#[register_op(grad = NoGrad, composed, decomposed)]
pub struct Decomposed<V = Var> {
    #[input]
    pub x: V,
    #[output(like = x)]
    pub out: V,
    #[scratch(like = x)]
    pub squares: V,
}

fn main() {}
