use autobwd::{Float, NoGrad, Pointwise, Var, register_op};

#[register_op(grad = HalveGrad, pointwise)]
pub struct Halve<V = Var> {
    #[input]
    pub x: V,
    #[output]
    pub out: V,
}
impl<F: Float> Pointwise for Halve<F> {
    fn eval(&mut self) {
        self.out = self.x * 0.5;
    }
}
#[register_op(grad = NoGrad, pointwise)]
pub struct HalveGrad<V = Var> {
    #[input("Uot@GRAD")]
    pub dout: V,
    #[output("X@GRAD")]
    pub dx: V,
}
impl<F: Float> Pointwise for HalveGrad<F> {
    fn eval(&mut self) {
        self.dx = self.dout * 0.5;
    }
}

#[register_op(grad = DoubleGrad, pointwise)]
pub struct Double<V = Var> {
    #[input]
    pub x: V,
    #[output]
    pub out: V,
}
impl<F: Float> Pointwise for Double<F> {
    fn eval(&mut self) {
        self.out = self.x * 2.0;
    }
}
#[register_op(grad = NoGrad, pointwise)]
pub struct DoubleGrad<V = Var> {
    #[input("Out@GRAD")]
    pub dout: V,
    #[output("XX@GRAD")]
    pub dx: V,
}
impl<F: Float> Pointwise for DoubleGrad<F> {
    fn eval(&mut self) {
        self.dx = self.dout * 2.0;
    }
}

fn main() {}
