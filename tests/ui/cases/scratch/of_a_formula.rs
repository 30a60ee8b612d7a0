use autobwd::{NoGrad, Var, register_op};

#[register_op(grad = NoGrad, pointwise)]
pub struct Square<V = Var> {
    #[input]
    pub x: V,
    #[output]
    pub out: V,
    #[scratch(like = x)]
    pub squares: V,
}

fn main() {}
