use autobwd::{Float, NoGrad, Pointwise, Var, register_op};

#[register_op(grad = TimesGrad, pointwise)]
pub struct Times<V = Var> {
    #[input]
    pub x: V,
    #[input]
    pub y: V,
    #[output]
    pub out: V,
}
impl<F: Float> Pointwise for Times<F> {
    fn eval(&mut self) {
        self.out = self.x * self.y;
    }
}
#[register_op(grad = NoGrad, grad_of = Times, pointwise)]
pub struct TimesGrad<V = Var> {
    pub dout: V,
    #[input("Out@GRAD")]
    pub upstream: V,
    #[output]
    pub dx: V,
}
impl<F: Float> Pointwise for TimesGrad<F> {
    fn eval(&mut self) {
        self.dx = self.dout * self.upstream;
    }
}

fn main() {}
