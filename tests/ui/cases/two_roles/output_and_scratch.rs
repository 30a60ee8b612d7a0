use autobwd::{NoGrad, Var, register_op};

#[register_op(grad = NoGrad)]
pub struct Normalise<V = Var> {
    #[input]
    pub x: V,
    #[output]
    pub out: V,
    #[scratch(like = x)]
    #[output]
    pub squares: V,
}

fn main() {}
