use autobwd::{NoGrad, Var, register_op};

#[register_op(grad = NoGrad)]
pub struct Normalise<V = Var> {
    #[input]
    pub x: Vec<V>,
    #[output]
    pub out: Option<V>,
    #[scratch(like = x)]
    pub squares: V,
    #[scratch(like = out)]
    pub sums: V,
}

fn main() {}
