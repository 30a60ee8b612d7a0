//! Misbehaving operators without unsafe code (false shape rules, forged implementations, moved slots, panics): each
//! gives an error or the right value.
//!
//! No test may access foreign memory: `cargo run --release -p autobwd-benches --bin memcheck` runs them under valgrind.
//! Code that must not compile is in `ui/`.

mod forged;
mod interrupted;
mod lying;
mod moving;
mod sessions;
mod strides;
mod wild;

use autobwd::{Builder, DType, Executor, Expr, Result, Scope, Tensor};

/// Runs a program with one input, `x: float32 [-1]`, on these elements.
fn run(x: &[f32], build: impl Fn(&Expr) -> Expr) -> Result<Vec<f64>> {
    let net = Builder::new();
    let out = build(&net.input("x", DType::F32, &[-1])).name();
    let fed = Tensor::from_vec([x.len()], x.to_vec())?;
    let (mut executor, mut scope) = (Executor::with_threads(2), Scope::new());
    let mut results = vec![];
    // The second run sees the state that the first one leaves.
    for _ in 0..2 {
        results.push(executor.run(&net.program()?, &mut scope, &[("x", &fed)], &[&out])?[0].to_f64s());
    }
    assert_eq!(results[0], results[1]);
    results.pop().ok_or_else(|| autobwd::Error::data("no run"))
}

/// The same in eager mode.
fn run_eagerly(x: &[f32], build: impl Fn(&Expr) -> Expr) -> Result<Vec<f64>> {
    let tape = autobwd::eager();
    Ok(build(&tape.leaf("x", Tensor::from_vec([x.len()], x.to_vec())?)).tensor()?.to_f64s())
}
