use autobwd::{NoGrad, Var, register_op};

#[register_op(grad = NoGrad)]
pub struct Square<V = Var>(#[input] pub V, #[output] pub V);

fn main() {
    let _: Option<Square> = None;
}
