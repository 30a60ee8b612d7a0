//! The command with an operator of its own: `cargo run -p autobwd-cli --example own_operators -- ops cube`.

use std::process::ExitCode;

use autobwd::{
    Derived, Float, Pointwise, Var,
    check::{out, uniform},
    register_op, samples,
};

/// `out = x³`
#[register_op(grad = Derived, pointwise)]
pub struct Cube<V = Var> {
    /// Any shape.
    #[input]
    pub x: V,
    /// Same shape as `x`.
    #[output(inplace = x)]
    pub out: V,
}
impl<F: Float> Pointwise for Cube<F> {
    fn eval(&mut self) {
        self.out = self.x * self.x * self.x;
    }
}
samples!(Cube, [Cube { x: uniform([2, 3]), out: out() }]);

fn main() -> ExitCode {
    autobwd_cli::main_with("own-operators")
}
