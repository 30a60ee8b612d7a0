use autobwd::{NoGrad, Var, register_op};

#[register_op(grad = NoGrad)]
pub struct Add<V = Var> {
    #[input]
    pub x: V,
    #[input("X")]
    pub y: V,
    #[output]
    pub out: V,
}

fn main() {}
