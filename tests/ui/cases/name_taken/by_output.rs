use autobwd::{NoGrad, Var, register_op};

#[register_op(grad = NoGrad)]
pub struct Split<V = Var> {
    #[input]
    pub x: V,
    #[output("SecondHalf")]
    pub first_half: V,
    #[output]
    pub second_half: V,
}

fn main() {}
