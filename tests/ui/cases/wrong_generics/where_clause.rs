use autobwd::{NoGrad, Var, register_op};

#[register_op(grad = NoGrad)]
pub struct Square<V = Var>
where
    V: Clone,
{
    #[input]
    pub x: V,
    #[output]
    pub out: V,
}

fn main() {}
