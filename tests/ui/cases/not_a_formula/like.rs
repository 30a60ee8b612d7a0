use autobwd::{NoGrad, Var, register_op};

#[register_op(grad = NoGrad)]
pub struct Halves<V = Var> {
    #[input]
    pub x: V,
    #[output(like = x)]
    pub whole: V,
    #[output]
    pub half: V,
}

fn main() {}
