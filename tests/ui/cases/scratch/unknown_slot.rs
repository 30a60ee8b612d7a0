use autobwd::{NoGrad, Var, register_op};

#[register_op(grad = NoGrad)]
pub struct Normalise<V = Var> {
    #[input]
    pub input: V,
    #[output]
    pub out: V,
    #[scratch(like = inputs)]
    pub squares: V,
    #[scratch(like = squares)]
    pub sums: V,
}

fn main() {}
