//! Influence functions: the changes of test losses by one Newton step.

use autobwd::{
    Backward, Builder, DType, Executor, Feed, New, Result, Scope, Tensor, backward::hessian_vector_product,
    emit,
};
use autobwd_ops::{Math, linalg::Solve, model::per_sample, optim::compute_gradients};

use crate::regression::{CLASSES, Digits, FEATURES, losses, total_loss};

const WEIGHTS: usize = FEATURES * CLASSES;

/// For each training image, the approximate change of the loss of each test image if the training image is missing.
pub(crate) fn influences(
    executor: &mut Executor,
    scope: &mut Scope,
    digits: &Digits,
    tests: &Digits,
) -> Result<Vec<Vec<f64>>> {
    let of_training = gradients(executor, scope, digits)?;
    let of_tests = gradients(executor, scope, tests)?;
    let hessian = hessian(executor, scope, digits)?;

    // `gᵢᵀ H⁻¹ g / n`.
    let net = Builder::new();
    let [h, g, g_i] = ["h", "g", "g_i"].map(|name| net.input(name, DType::F64, &[-1, WEIGHTS as i64]));
    let steps = emit(Solve { x: h.into(), y: g.transpose(&[1, 0]).into(), out: New }).out;
    let changes = g_i.matmul(&steps) * (1.0 / digits.len() as f64);
    let feeds: [(&str, &dyn Feed); 3] = [("h", &hessian), ("g", &of_tests), ("g_i", &of_training)];
    let fetched = executor.run(&net.program()?, &mut Scope::new(), &feeds, &[&changes.name()])?;
    Ok(fetched[0].to_f64s().chunks(tests.len()).map(<[f64]>::to_vec).collect())
}

/// The gradient of the loss of each image, `[n, WEIGHTS]`.
fn gradients(executor: &mut Executor, scope: &mut Scope, digits: &Digits) -> Result<Tensor> {
    let net = Builder::new();
    let (_, losses) = losses(&net);
    let gradient = compute_gradients(&losses.mean(), &Backward::default())?.complete()?[0].1.name();
    let found = per_sample(executor, &*net.program()?, scope, &digits.feeds(), &[&gradient])?;
    Tensor::from_vec([digits.len(), WEIGHTS], found[0].to_f64s())
}

/// The Hessian of the loss, column by column.
fn hessian(executor: &mut Executor, scope: &mut Scope, digits: &Digits) -> Result<Tensor> {
    let net = Builder::new();
    let loss = total_loss(&net, digits.len()).name();
    net.input("v", DType::F32, &[FEATURES as i64, CLASSES as i64]);
    let mut program = net.program()?.clone();
    let products = hessian_vector_product(&mut program, &loss, &[("weights", "v")], &Default::default())?;
    let Some(product) = products[0] else { return Tensor::zeros(DType::F64, &[WEIGHTS, WEIGHTS]) };
    let product = program.name(product).to_string();
    let kept = Tensor::from_vec([digits.len(), 1], vec![1.0_f32; digits.len()])?;
    let mut columns = vec![];
    for weight in 0..WEIGHTS {
        let mut unit = vec![0.0_f32; WEIGHTS];
        unit[weight] = 1.0;
        let v = Tensor::from_vec([FEATURES, CLASSES], unit)?;
        let feeds: [(&str, &dyn Feed); 4] =
            [("features", &digits.features), ("label", &digits.label), ("kept", &kept), ("v", &v)];
        columns.extend(executor.run(&program, scope, &feeds, &[&product])?[0].to_f64s());
    }
    Tensor::from_vec([WEIGHTS, WEIGHTS], columns)
}
