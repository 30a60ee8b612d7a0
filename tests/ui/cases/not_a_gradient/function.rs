use autobwd::{Float, GradCx, Pointwise, Var, register_op};

#[register_op(grad = swish_grad, pointwise)]
pub struct Swish<V = Var> {
    #[input]
    pub x: V,
    #[output]
    pub out: V,
}
impl<F: Float> Pointwise for Swish<F> {
    fn eval(&mut self) {
        self.out = self.x;
    }
}
fn swish_grad(fwd: &Twice, g: &mut GradCx<'_>) {
    g.grad(fwd.out);
}

#[register_op(grad = twice_grad, pointwise)]
pub struct Twice<V = Var> {
    #[input]
    pub x: V,
    #[output]
    pub out: V,
}
impl<F: Float> Pointwise for Twice<F> {
    fn eval(&mut self) {
        self.out = self.x * 2.0;
    }
}
fn twice_grad(fwd: &Twice) -> Var {
    fwd.x
}

#[register_op(grad = missing_grad, pointwise)]
pub struct Thrice<V = Var> {
    #[input]
    pub x: V,
    #[output]
    pub out: V,
}
impl<F: Float> Pointwise for Thrice<F> {
    fn eval(&mut self) {
        self.out = self.x * 3.0;
    }
}

fn main() {}
