use autobwd::{Float, GradCx, GradRule, Pointwise, Var, register_op};

#[register_op(grad = SquareGrad, pointwise)]
pub struct Square<V = Var> {
    #[input]
    pub x: V,
    #[output]
    pub out: V,
}
impl<F: Float> Pointwise for Square<F> {
    fn eval(&mut self) {
        self.out = self.x * self.x;
    }
}

struct SquareGrad;
impl GradRule<Square> for SquareGrad {
    fn emit(_: &Square, _: &mut GradCx<'_>) {}
}

fn main() {}
