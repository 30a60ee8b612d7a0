use autobwd::{Float, NoGrad, Pointwise, Var, register_op};

#[register_op(grad = NoGrad, pointwise)]
pub struct Polynomial<V = Var> {
    #[input]
    pub x: V,
    #[output]
    pub out: V,
    #[attr]
    pub coefficients: Vec<f64>,
}
impl<F: Float> Pointwise for Polynomial<F> {
    fn eval(&mut self) {
        self.out = self.coefficients.iter().rev().fold(F::from(0.0), |sum, c| sum * self.x + F::from(*c));
    }
}

fn main() {}
