use autobwd::{NoGrad, Var, register_op};

#[register_op(grad = NoGrad, composed)]
pub struct Swish<V = Var> {
    #[input]
    pub x: V,
    #[output(like = x)]
    pub out: V,
}

fn main() {}
