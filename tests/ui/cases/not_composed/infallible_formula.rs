use autobwd::{NoGrad, Var, register_op};

#[register_op(grad = NoGrad, pointwise, infallible)]
pub struct Formula<V = Var> {
    #[input]
    pub x: V,
    #[output]
    pub out: V,
}

fn main() {}
