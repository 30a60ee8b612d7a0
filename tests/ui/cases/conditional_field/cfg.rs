use autobwd::{NoGrad, Var, register_op};

#[register_op(grad = NoGrad)]
pub struct Square<V = Var> {
    #[input]
    pub x: V,
    #[cfg(unix)]
    #[input]
    pub y: V,
    #[output]
    pub out: V,
}

fn main() {}
