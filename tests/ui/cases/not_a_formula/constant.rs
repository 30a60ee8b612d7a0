use autobwd::{NoGrad, Var, register_op};

#[register_op(grad = NoGrad, pointwise)]
pub struct Scaled<V = Var> {
    #[input]
    pub x: V,
    #[input(constant)]
    pub factor: V,
    #[output]
    pub out: V,
}

fn main() {}
