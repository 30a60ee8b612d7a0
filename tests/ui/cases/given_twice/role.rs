use autobwd::{NoGrad, Var, register_op};

#[register_op(grad = NoGrad)]
pub struct Square<V = Var> {
    #[input("X")]
    #[input(shape_only)]
    pub x: V,
    #[output]
    pub out: V,
}

fn main() {}
