//! The operators of this crate in a training program.

use autobwd::{
    Builder, DType, Executor, Scope, Tensor,
    ndarray::{Array2, Axis, array},
};
use autobwd_downstream::{bell, center, dense};
use autobwd_ops::{
    Init, Math,
    optim::{Optimizer, Sgd},
};

#[test]
fn a_model_of_them_trains() -> autobwd::Result<()> {
    let net = Builder::new();
    let x = net.input("x", DType::F32, &[-1, 2]);
    let w = net.parameter("w", DType::F32, &[2, 1], |w| Init::Constant(0.5).emit(w, 0));
    let loss = bell(&dense(&x, &w), 2.0).mean();
    Sgd { rate: 0.1 }.minimize(&loss)?.complete()?;

    let (mut executor, mut scope) = (Executor::new(), Scope::new());
    executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
    let rows = [[0.5_f32, 0.75], [-2.0, 1.0], [0.0, 0.0]];
    let x = Tensor::from_vec([3, 2], rows.concat())?;
    let grad = executor.run(&net.program()?, &mut scope, &[("x", &x)], &["w@GRAD"])?;
    for (k, grad) in grad[0].slice::<f32>()?.iter().enumerate() {
        let term = |row: [f32; 2]| {
            let z = (row[0] + row[1]) / 2.0;
            row[k] / 3.0 * (-4.0 * z * z).exp() * -8.0 * z
        };
        let expected: f32 = rows.map(term).iter().sum();
        assert!((grad - expected).abs() < 1e-6, "{grad} {expected}");
    }
    Ok(())
}

#[test]
fn an_elementwise_operator_runs_with_its_neighbours() -> autobwd::Result<()> {
    let net = Builder::new();
    let w = net.parameter("w", DType::F32, &[100], |w| Init::Uniform(-1.0, 1.0).emit(w, 1));
    let loss = (bell(&w.tanh(), 2.0) * 3.0).sum(&[]);
    Sgd { rate: 0.1 }.minimize(&loss)?.complete()?;
    let (mut executor, mut scope) = (Executor::new(), Scope::new());
    executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
    // With its derived gradient and the update.
    let session = executor.prepare(&net.program()?, &mut scope, &[], &[&loss.name()])?;
    assert_eq!(session.instruction_count(), 1, "{}", net.program()?);
    Ok(())
}

#[test]
fn arrays_go_in_and_come_out() -> autobwd::Result<()> {
    let net = Builder::new();
    let x = net.input("x", DType::F64, &[-1, -1]);
    let out = center(&x).name();
    let data = array![[1.0, 5.0], [2.0, 3.0], [6.0, 4.0]];
    let mut fetched =
        Executor::new().run(&net.program()?, &mut Scope::new(), &[("x", &data.view())], &[&out])?;
    let centered: Array2<f64> = fetched.remove(0).into_array()?;
    assert_eq!(centered, array![[-2.0, 1.0], [-1.0, -1.0], [3.0, 0.0]]);
    assert_eq!(centered, &data - &data.mean_axis(Axis(0)).unwrap());
    Ok(())
}
