//! Eager tapes and their leaves.

use autobwd::{Builder, Expr, Tensor};

pub(crate) fn tape() -> Builder {
    autobwd::tape::eager_with_threads(1)
}

pub(crate) fn numbers(dims: &[usize], at: usize) -> Tensor {
    let n: usize = dims.iter().product();
    Tensor::from_vec(dims, (0..n).map(|i| (((i * 7 + at * 3) % 11) as f32 - 5.0) / 4.0).collect()).unwrap()
}

pub(crate) fn leaf(tape: &Builder, name: &str, number: f64) -> Expr {
    tape.leaf(name, Tensor::scalar(number).unwrap())
}
