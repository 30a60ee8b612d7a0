use autobwd::{NoGrad, Var, register_op};

#[register_op(grad = NoGrad)]
pub struct Square<V = Var> {
    #[input("X", "Input")]
    pub x: V,
    #[output]
    pub out: V,
}

fn main() {}
