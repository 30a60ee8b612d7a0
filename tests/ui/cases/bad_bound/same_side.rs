use autobwd::{NoGrad, Var, register_op};

#[register_op(grad = NoGrad)]
pub struct Root<V = Var> {
    #[input]
    pub x: V,
    #[output]
    pub out: V,
    #[attr(min = 1, above = 0)]
    pub degree: i32,
}

fn main() {}
