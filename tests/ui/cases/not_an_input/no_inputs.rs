use autobwd::{NoGrad, Var, register_op};

#[register_op(grad = NoGrad, pointwise)]
pub struct Pair<V = Var> {
    #[output]
    pub a: V,
    #[output(like = a)]
    pub b: V,
}

fn main() {}
