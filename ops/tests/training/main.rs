//! What a training loop is made of, each part by itself.

mod clipping;
mod names;
mod rates;

use autobwd::{Builder, DType, Executor, Expr, Feed, Result, Scope, Tensor};
use autobwd_ops::Init;

/// A scope with the values of the start-up program.
fn started(net: &Builder) -> Result<Scope> {
    let mut scope = Scope::new();
    Executor::with_threads(1).run(&net.startup().program()?, &mut scope, &[], &[])?;
    Ok(scope)
}

/// Runs the program of a builder; returns the fetched values.
fn run(net: &Builder, scope: &mut Scope, feeds: &[(&str, &Tensor)], fetch: &[&Expr]) -> Result<Vec<Tensor>> {
    let names: Vec<String> = fetch.iter().map(|expr| expr.name()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let feeds: Vec<(&str, &dyn Feed)> = feeds.iter().map(|(name, x)| (*name, *x as &dyn Feed)).collect();
    Executor::with_threads(1).run(&net.program()?, scope, &feeds, &names)
}

/// A parameter of these elements, all equal.
fn parameter(net: &Builder, name: &str, count: usize, value: f64) -> Expr {
    net.parameter(name, DType::F32, &[count], |w| Init::Constant(value).emit(w, 0))
}

fn elements(scope: &Scope, name: &str) -> Vec<f32> {
    scope.get(name).unwrap().slice::<f32>().unwrap().to_vec()
}
