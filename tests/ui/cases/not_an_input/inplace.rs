use autobwd::{NoGrad, Var, register_op};

#[register_op(grad = NoGrad)]
pub struct Add<V = Var> {
    #[input]
    pub x: V,
    #[input]
    pub y: V,
    #[output(inplace = X)]
    pub out: V,
}

fn main() {}
