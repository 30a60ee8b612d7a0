//! Derivatives by central differences.

use autobwd::{Builder, DType, Executor, Expr, Program, Result, Scope, Tensor, gradients};
use autobwd_ops::Init;

/// Values of variables in the scope.
pub(crate) type Point<'a> = [(&'a str, &'a [f64])];

/// A parameter in double precision.
pub(crate) fn parameter(net: &Builder, name: &str, dims: &[usize]) -> Expr {
    net.parameter(name, DType::F64, dims, |w| Init::Uniform(0.5, 1.5).emit(w, 3))
}

/// The values of some variables, for a program that starts at a point.
pub(crate) fn run(program: &Program, at: &Point<'_>, fetch: &[&str]) -> Result<Vec<Vec<f64>>> {
    let mut scope = Scope::new();
    for (name, value) in at {
        let desc = program.root().vars.get(&program.expect_var(name)?);
        let dims = desc.and_then(|desc| desc.dims.known()).unwrap_or_default();
        scope.set(name, Tensor::from_vec(dims, value.to_vec())?);
    }
    let fetched = Executor::with_threads(1).run(program, &mut scope, &[], fetch)?;
    Ok(fetched.iter().map(Tensor::to_f64s).collect())
}

/// The derivative of the sum of a variable's elements with respect to another variable's initial value.
pub(crate) fn numeric(program: &Program, at: &Point<'_>, target: &str, of: &str) -> Result<Vec<f64>> {
    let start = at.iter().find(|(name, _)| *name == of).map_or(&[][..], |(_, value)| value);
    let mut derivative = vec![];
    for i in 0..start.len() {
        let side = |step: f64| -> Result<f64> {
            let mut moved = start.to_vec();
            moved[i] += step;
            let at: Vec<_> = at.iter().map(|(n, v)| (*n, if *n == of { &moved[..] } else { v })).collect();
            Ok(run(program, &at, &[target])?[0].iter().sum())
        };
        derivative.push((side(1e-5)? - side(-1e-5)?) / 2e-5);
    }
    Ok(derivative)
}

/// Whether all numbers agree up to a tolerance relative to the largest one, or to 1.
pub(crate) fn near(found: &[f64], expected: &[f64], tolerance: f64) -> bool {
    let scale = expected.iter().fold(1.0_f64, |max, x| max.max(x.abs()));
    found.len() == expected.len()
        && found.iter().zip(expected).all(|(a, b)| (a - b).abs() <= tolerance * scale)
}

#[track_caller]
pub(crate) fn assert_near(found: &[f64], expected: &[f64], tolerance: f64) {
    assert!(near(found, expected, tolerance), "found {found:?}\nexpected {expected:?}");
}

/// Asserts that `grad` is the derivative of the sum of the elements of `target` with respect to `of`.
#[track_caller]
pub(crate) fn assert_derivative(program: &Program, at: &Point<'_>, target: &str, of: &str, grad: &str) {
    let built = run(program, at, &[grad]).unwrap();
    let expected = numeric(program, at, target, of).unwrap();
    let outcome = std::panic::catch_unwind(|| assert_near(&built[0], &expected, 1e-7));
    assert!(outcome.is_ok(), "the gradient of `{of}` is another in\n{program}");
}

/// Asserts that the first `orders` derivatives of the sum of the elements of `target` with respect to `of` are right.
#[track_caller]
pub(crate) fn assert_derivatives(
    mut program: Program,
    at: &Point<'_>,
    mut target: String,
    of: &str,
    orders: usize,
) {
    for _ in 0..orders {
        let found = gradients(&mut program, &[&target], &[of], &Default::default()).unwrap().entries()[0];
        let grad = program.name(found.expect("a path leads there")).to_string();
        assert_derivative(&program, at, &target, of, &grad);
        target = grad;
    }
}

/// The gradients of `y` with respect to parameters at a point.
pub(crate) fn gradients_at(net: &Builder, y: &Expr, at: &Point<'_>) -> Result<Vec<Vec<f64>>> {
    let mut program = net.program()?.clone();
    let inputs: Vec<&str> = at.iter().map(|(name, _)| *name).collect();
    let grads = gradients(&mut program, &[&y.name()], &inputs, &Default::default())?.entries();
    let names: Vec<String> = grads.iter().flatten().map(|v| program.name(*v).to_string()).collect();
    run(&program, at, &names.iter().map(String::as_str).collect::<Vec<_>>())
}

/// The derivative of `f` at each point.
pub(crate) fn derivative_at(points: &[f64], f: impl Fn(&Expr) -> Expr) -> Result<Vec<f64>> {
    let net = Builder::new();
    let y = f(&parameter(&net, "x", &[points.len()]));
    Ok(gradients_at(&net, &y, &[("x", points)])?.remove(0))
}
