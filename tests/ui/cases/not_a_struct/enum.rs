use autobwd::register_op;

#[register_op(grad = autobwd::NoGrad)]
pub enum Activation {
    Relu,
    Tanh,
}

fn main() {
    let _ = Activation::Relu;
}
