use autobwd::{NoGrad, Var, register_op};

#[register_op(grad = NoGrad)]
pub struct Normalise<V = Var> {
    #[input]
    pub x: V,
    #[output]
    pub out: V,
    #[scratch(like = x)]
    pub squares: Option<V>,
    #[scratch(like = x)]
    pub sums: Vec<f32>,
}

fn main() {}
