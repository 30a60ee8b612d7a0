//! L-BFGS on functions with known minima.

use autobwd::{Backward, Builder, DType, Executor, Expr, Result, Tensor};
use autobwd_ops::{
    Init, Math,
    nn::Linear,
    optim::{Lbfgs, compute_gradients},
};

use crate::support::{numbers, started};

/// The losses after every step.
fn minimize(
    net: &Builder,
    loss: &Expr,
    optimizer: &mut Lbfgs,
    steps: usize,
) -> Result<(Vec<f64>, autobwd::Scope)> {
    let gradients = compute_gradients(loss, &Backward::default())?.complete()?;
    let (program, mut scope, mut executor) = (net.program()?, started(net)?, Executor::with_threads(1));
    let mut step = || optimizer.step(&mut executor, &program, &mut scope, &[], loss, &gradients);
    let losses = (0..steps).map(|_| step()).collect::<Result<_>>()?;
    Ok((losses, scope))
}

#[test]
fn valley_of_rosenbrock_is_descended() -> Result<()> {
    let losses = |history| {
        let net = Builder::new();
        let w = net.parameter("w", DType::F64, &[2], |w| Init::Constant(-1.0).emit(w, 0));
        let (x, y) = (w.slice(0, 0, 1), w.slice(0, 1, 2));
        let loss = ((1.0 - &x).square() + (y - x.square()).square() * 100.0).sum(&[]);
        minimize(&net, &loss, &mut Lbfgs::new().history(history), 60)
    };
    let (found, scope) = losses(10)?;
    assert!(found.windows(2).all(|pair| pair[1] <= pair[0]), "{found:?}");
    assert!(found[59] < 1e-15, "{found:?}");
    assert!(scope.get("w")?.to_f64s().iter().all(|x| (x - 1.0).abs() < 1e-6));
    // Gradient descent does not get there.
    assert!(losses(0)?.0[59] > 1e-3);
    Ok(())
}

#[test]
fn regression_in_single_precision_is_solved() -> Result<()> {
    let net = Builder::new();
    let data = |name: &str, dims: &[usize], phase: f64| {
        let values: Vec<f32> = numbers(dims.iter().product(), phase).iter().map(|x| *x as f32).collect();
        let data = Tensor::from_vec(dims, values).unwrap();
        let var = net.persistable(name, DType::F32, dims, Expr::clone).freeze();
        (var, data)
    };
    let ((x, xs), (y, ys)) = (data("x", &[20, 3], 0.0), data("y", &[20, 1], 1.0));
    let loss = Linear::builder(&net, 3, 1).build().forward(&x).square_error(&y).mean();
    let gradients = compute_gradients(&loss, &Backward::default())?.complete()?;
    let (program, mut scope, mut executor) = (net.program()?, started(&net)?, Executor::with_threads(1));
    scope.set("x", xs);
    scope.set("y", ys);
    let mut optimizer = Lbfgs::new();
    for _ in 0..15 {
        optimizer.step(&mut executor, &program, &mut scope, &[], &loss, &gradients)?;
    }
    let found = executor.run(&program, &mut scope, &[], &[&gradients[0].1.name(), &gradients[1].1.name()])?;
    let largest = found.iter().flat_map(Tensor::to_f64s).fold(0.0, |most: f64, x| most.max(x.abs()));
    // Steps along smaller gradients change the loss by less than its last bit.
    assert!(largest < 3e-4, "{largest}");
    Ok(())
}

#[test]
fn at_a_minimum_and_after_nan_parameters_stay() -> Result<()> {
    let net = Builder::new();
    let w = net.parameter("w", DType::F64, &[1], |w| Init::Constant(2.0).emit(w, 0));
    let loss = (&w - 2.0).square().sum(&[]);
    let (losses, scope) = minimize(&net, &loss, &mut Lbfgs::new(), 2)?;
    assert_eq!((losses, scope.get("w")?.item()?), (vec![0.0, 0.0], 2.0));

    let net = Builder::new();
    let w = net.parameter("w", DType::F64, &[1], |w| Init::Constant(-1.0).emit(w, 0));
    let e = minimize(&net, &w.log().sum(&[]), &mut Lbfgs::new(), 1).unwrap_err();
    assert_eq!(e.message(), "the loss is NaN before the step");
    Ok(())
}
