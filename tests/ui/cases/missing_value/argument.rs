use autobwd::{Var, register_op};

#[register_op(grad)]
pub struct Square<V = Var> {
    #[input]
    pub x: V,
    #[output]
    pub out: V,
}

fn main() {}
