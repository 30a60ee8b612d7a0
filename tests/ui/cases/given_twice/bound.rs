use autobwd::{NoGrad, Var, register_op};

#[register_op(grad = NoGrad)]
pub struct Clip<V = Var> {
    #[input]
    pub x: V,
    #[output]
    pub out: V,
    #[attr(min = 0.0, max = 1.0, min = 0.5)]
    pub limit: f64,
}

fn main() {}
