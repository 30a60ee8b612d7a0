use autobwd::{Composed, Var, register_op};

#[register_op(grad = Composed, composed)]
pub struct Swish<V = Var> {
    #[input]
    pub x: V,
    #[output(like = x)]
    pub out: V,
}

fn main() {}
