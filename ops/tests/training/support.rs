//! What these tests share.

use autobwd::{Builder, DType, Executor, Expr, Feed, Result, Scope, Tensor};
use autobwd_ops::{Init, Math};

/// A scope with the values of the start-up program.
pub(crate) fn started(net: &Builder) -> Result<Scope> {
    let mut scope = Scope::new();
    Executor::with_threads(1).run(&net.startup().program()?, &mut scope, &[], &[])?;
    Ok(scope)
}

/// Runs the program of a builder; returns the fetched values.
pub(crate) fn run(
    net: &Builder,
    scope: &mut Scope,
    feeds: &[(&str, &Tensor)],
    fetch: &[&Expr],
) -> Result<Vec<Tensor>> {
    let names: Vec<String> = fetch.iter().map(|expr| expr.name()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let feeds: Vec<(&str, &dyn Feed)> = feeds.iter().map(|(name, x)| (*name, *x as &dyn Feed)).collect();
    Executor::with_threads(1).run(&net.program()?, scope, &feeds, &names)
}

/// A parameter of these elements, all equal.
pub(crate) fn parameter(net: &Builder, name: &str, count: usize, value: f64) -> Expr {
    net.parameter(name, DType::F32, &[count], |w| Init::Constant(value).emit(w, 0))
}

pub(crate) fn elements(scope: &Scope, name: &str) -> Vec<f32> {
    scope.get(name).unwrap().slice::<f32>().unwrap().to_vec()
}

/// Unordered numbers between -1 and 1.
pub(crate) fn numbers(count: usize, phase: f64) -> Vec<f64> {
    (1..=count).map(|i| (i as f64 * 1.37 + phase).sin()).collect()
}

/// A tensor of unordered numbers.
pub(crate) fn constant(net: &Builder, dims: &[usize]) -> Expr {
    net.constant(Tensor::from_vec(dims, numbers(dims.iter().product(), 0.25)).unwrap())
}

/// Compares the gradients of `f` at unordered numbers with central differences.
#[track_caller]
pub(crate) fn assert_gradients(shapes: &[&[usize]], f: impl Fn(&Builder, &[Expr]) -> Expr) {
    let inputs: Vec<Vec<f64>> =
        shapes.iter().enumerate().map(|(i, dims)| numbers(dims.iter().product(), i as f64)).collect();
    let loss = |net: &Builder, inputs: &[Vec<f64>]| {
        let leaf = |(i, x): (usize, &Vec<f64>)| {
            net.leaf(&format!("x{i}"), Tensor::from_vec(shapes[i], x.clone()).unwrap())
        };
        let leaves: Vec<Expr> = inputs.iter().enumerate().map(leaf).collect();
        // Weights that differ, so that no gradient vanishes by symmetry.
        let out = f(net, &leaves);
        let count = out.check().unwrap().dims().numel().get().unwrap();
        let dims: Vec<usize> = out.dims().known().unwrap().to_vec();
        let weights = net.constant(Tensor::from_vec(&dims[..], numbers(count, 0.5)).unwrap());
        ((out * weights).sum(&[]), leaves)
    };
    let tape = autobwd::eager();
    let (value, leaves) = loss(&tape, &inputs);
    value.backward().unwrap();
    for (i, leaf) in leaves.iter().enumerate() {
        let gradient = leaf.gradient().unwrap().tensor().unwrap();
        for (k, gradient) in gradient.slice::<f64>().unwrap().iter().enumerate() {
            let at = |step: f64| {
                let mut inputs = inputs.clone();
                inputs[i][k] += step;
                loss(&autobwd::eager(), &inputs).0.item().unwrap()
            };
            let difference = (at(1e-5) - at(-1e-5)) / 2e-5;
            let near = (gradient - difference).abs() < 1e-7 * (1.0 + difference.abs());
            assert!(near, "element {k} of input {i}: {gradient}, not {difference}");
        }
    }
}

#[track_caller]
pub(crate) fn assert_near(found: &Expr, expected: &[f64]) {
    let found = found.tensor().unwrap().to_f64s();
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() < 1e-9 * (1.0 + expected.abs()), "{found}, not {expected}");
    }
}
