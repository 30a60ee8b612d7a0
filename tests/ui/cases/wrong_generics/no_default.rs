use autobwd::{NoGrad, register_op};

#[register_op(grad = NoGrad)]
pub struct Square<V> {
    #[input]
    pub x: V,
    #[output]
    pub out: V,
}

fn main() {}
