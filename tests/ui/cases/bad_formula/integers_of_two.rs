use autobwd::{NoGrad, Var, register_op};

#[register_op(grad = NoGrad, pointwise, integers)]
pub struct Both<V = Var> {
    #[input]
    pub x: V,
    #[output]
    pub square: V,
    #[output]
    pub cube: V,
}

fn main() {}
