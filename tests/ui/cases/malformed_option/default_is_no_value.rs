use autobwd::{NoGrad, Var, register_op};

#[register_op(grad = NoGrad)]
pub struct Scale<V = Var> {
    #[input]
    pub x: V,
    #[output]
    pub out: V,
    #[attr(default = =)]
    pub scale: f32,
}

fn main() {}
