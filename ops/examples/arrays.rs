//! Fits a straight line by gradient descent, with data in ndarray arrays.
//!
//! ```text
//! cargo run --release --example arrays
//! ```
//!
//! Inputs are views of one array, parameters convert from and to arrays, and fetched values become arrays without a
//! copy.

use autobwd::{
    Builder, DType, Executor, Result, Scope, Tensor,
    ndarray::{Array1, Array2, Ix0, Ix1, Ix2, array},
};
use autobwd_ops::{
    Init, Math,
    optim::{Optimizer, Sgd},
};

/// Points on the line `y = 3 x - 1`, one per row.
fn points(count: usize) -> Array2<f32> {
    Array2::from_shape_fn((count, 2), |(i, column)| {
        let x = i as f32 / count as f32;
        if column == 0 { x } else { 3.0 * x - 1.0 }
    })
}

/// Learns `slope` and `offset` of the line.
fn learn(points: &Array2<f32>, steps: usize) -> Result<Array1<f32>> {
    let net = Builder::new();
    let (x, y) = (net.input("x", DType::F32, &[-1]), net.input("y", DType::F32, &[-1]));
    let parameter = |name| net.parameter(name, DType::F32, &[1], |w| Init::Constant(0.0).emit(w, 0));
    let (slope, offset) = (parameter("slope"), parameter("offset"));
    let error = &x * slope + offset - &y;
    let loss = error.square().mean();
    Sgd { rate: 0.5 }.minimize(&loss)?.complete()?;

    let (mut executor, mut scope) = (Executor::new(), Scope::new());
    // Initial values; the start-up program would set zeros.
    executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
    scope.set("slope", Tensor::try_from(array![1.0_f32])?);
    // Columns of the array, with a stride: views are fed without a copy.
    let (x, y) = (points.column(0), points.column(1));
    let mut last = f32::INFINITY;
    for step in 0..steps {
        let fetched = executor.run(&net.program()?, &mut scope, &[("x", &x), ("y", &y)], &[&loss.name()])?;
        last = fetched[0].view::<f32, Ix0>()?[()];
        if step % 100 == 0 {
            println!("step {step}: loss {last:.6}");
        }
    }
    println!("loss {last:.2e}");
    let view = |name| scope.get(name)?.view::<f32, Ix1>();
    Ok(array![view("slope")?[0], view("offset")?[0]])
}

fn main() -> Result<()> {
    let points = Tensor::try_from(points(64))?.into_array::<f32, Ix2>()?;
    let line = learn(&points, 500)?;
    println!("y = {:.3} x {:+.3}", line[0], line[1]);
    assert!((&line - &array![3.0, -1.0]).mapv(f32::abs).sum() < 1e-2, "{line}");
    Ok(())
}
