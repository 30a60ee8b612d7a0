use autobwd::{NoGrad, Var, register_op};

#[register_op(grad = NoGrad)]
pub struct Named<'a, V = Var> {
    #[input]
    pub x: V,
    #[output]
    pub out: V,
    #[attr]
    pub label: &'a str,
}

fn main() {}
