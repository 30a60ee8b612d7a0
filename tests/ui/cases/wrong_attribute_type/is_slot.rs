use autobwd::{NoGrad, Var, register_op};

#[register_op(grad = NoGrad)]
pub struct Scale<V = Var> {
    #[input]
    pub x: V,
    #[output]
    pub out: V,
    #[attr]
    pub scale: Option<V>,
}

fn main() {}
