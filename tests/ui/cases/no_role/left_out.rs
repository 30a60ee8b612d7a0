use autobwd::{NoGrad, Var, register_op};

#[register_op(grad = NoGrad)]
pub struct Add<V = Var> {
    #[input]
    pub x: V,
    pub y: V,
    #[output(inplace = y)]
    pub out: V,
}

fn main() {}
