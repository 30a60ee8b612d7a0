use autobwd::{NoGrad, Var, register_op};

#[register_op(grad = NoGrad)]
pub struct Square<V = Var> {
    #[inptu]
    pub x: V,
    #[output(inplace = x)]
    pub out: V,
}

fn main() {}
