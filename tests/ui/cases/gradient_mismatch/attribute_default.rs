use autobwd::{Float, NoGrad, Pointwise, Var, register_op};

#[register_op(grad = ScaleGrad, pointwise)]
pub struct Scale<V = Var> {
    #[input]
    pub x: V,
    #[output]
    pub out: V,
    #[attr(default = 1e-3)]
    pub small: f64,
    #[attr(default = 1.5)]
    pub factor: f64,
}
impl<F: Float> Pointwise for Scale<F> {
    fn eval(&mut self) {
        self.out = self.x * self.factor + self.small;
    }
}
#[register_op(grad = NoGrad, pointwise)]
pub struct ScaleGrad<V = Var> {
    #[input("Out@GRAD")]
    pub dout: V,
    #[output("X@GRAD")]
    pub dx: V,
    #[attr(default = 0.001)]
    pub small: f64,
    #[attr(default = 2.5)]
    pub factor: f64,
}
impl<F: Float> Pointwise for ScaleGrad<F> {
    fn eval(&mut self) {
        self.dx = self.dout * self.factor;
    }
}

fn main() {}
