use autobwd::{Float, GradCx, GradRule, NoGrad, Pointwise, Var, register_op};

#[register_op(grad = CubeGrad, pointwise)]
pub struct Square<V = Var> {
    #[input]
    pub x: V,
    #[output]
    pub out: V,
}
impl<F: Float> Pointwise for Square<F> {
    fn eval(&mut self) {}
}
#[register_op(grad = NoGrad, pointwise)]
pub struct Cube<V = Var> {
    #[input]
    pub x: V,
    #[output]
    pub out: V,
}
impl<F: Float> Pointwise for Cube<F> {
    fn eval(&mut self) {}
}
pub struct CubeGrad;
impl GradRule<Cube> for CubeGrad {
    fn emit(_: &Cube, _: &mut GradCx<'_>) {}
}

fn main() {}
