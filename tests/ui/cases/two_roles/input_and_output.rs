use autobwd::{NoGrad, Var, register_op};

#[register_op(grad = NoGrad)]
pub struct Increment<V = Var> {
    #[input("X")]
    #[output("Out")]
    pub x: V,
}

fn main() {}
