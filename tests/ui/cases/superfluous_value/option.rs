use autobwd::{NoGrad, Var, register_op};

#[register_op(grad = NoGrad)]
pub struct Square<V = Var> {
    #[input(shape_only(true))]
    pub x: V,
    #[input(sparse = true)]
    pub y: V,
    #[output]
    pub out: V,
}

fn main() {}
