use autobwd::{Attrs, Derived, Float, Pointwise, Var, register_op};

#[derive(Attrs, Clone, Copy, Debug)]
pub struct Line {
    #[attr(default = 1.0)]
    pub slope: f64,
}
#[register_op(grad = Derived, pointwise)]
pub struct Along<V = Var> {
    #[input]
    pub x: V,
    #[output]
    pub out: V,
    #[attr(default = 2.0)]
    pub slope: f64,
    #[attrs]
    pub line: Line,
}
impl<F: Float> Pointwise for Along<F> {
    fn eval(&mut self) {
        self.out = self.x * self.slope + self.line.slope;
    }
}

fn main() {}
