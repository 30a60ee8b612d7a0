use autobwd::{NoGrad, Var, register_op};

#[register_op(grad = NoGrad, pointwise)]
pub struct Sum<V = Var> {
    #[input("Terms")]
    pub x: Vec<V>,
    #[output]
    pub out: V,
}

fn main() {}
