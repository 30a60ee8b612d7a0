use autobwd::{Float, NoGrad, Pointwise, Var, register_op};

#[register_op(grad = grads::AddGrad, pointwise)]
pub struct Add<V = Var> {
    #[input]
    pub x: V,
    #[input]
    pub y: V,
    #[output]
    pub out: V,
}
impl<F: Float> Pointwise for Add<F> {
    fn eval(&mut self) {}
}
pub mod grads {
    use super::*;

    #[register_op(grad = NoGrad, pointwise)]
    pub struct AddGrad<V = Var> {
        #[input("Out@GRAD")]
        pub dout: V,
        #[output("Out@GRAD")]
        pub dx: V,
    }
    impl<F: Float> Pointwise for AddGrad<F> {
        fn eval(&mut self) {}
    }
}

fn main() {}
