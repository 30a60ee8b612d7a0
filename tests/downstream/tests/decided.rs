//! Data decides the shape of an operator of this crate, in programs and in eager mode.

use autobwd::{Builder, DType, Executor, Result, Scope, Tensor, gradients};
use autobwd_downstream::peaks;
use autobwd_ops::Math;

const X: [f64; 7] = [0.0, 2.0, 1.0, 3.0, 5.0, 4.0, 9.0];

#[test]
fn later_operators_have_the_shape_that_data_decided() -> Result<()> {
    let net = Builder::new();
    let x = net.input("x", DType::F64, &[-1]);
    let height = x.gather(&peaks(&x, 0.5), 0).square().sum(&[]).name();
    let mut program = net.program()?.clone();
    program.root_mut().vars.get_mut(&x.var()).expect("x is declared").stop_gradient = false;
    let found = gradients(&mut program, &[&height], &["x"], &Default::default())?;
    let gradient = program.name(found.entries()[0].expect("the height depends on x")).to_string();
    let (mut executor, mut scope) = (Executor::new(), Scope::new());
    for x in [X.to_vec(), vec![1.0, 0.0], X[1..].to_vec()] {
        let is_peak = |i: usize| i > 0 && i + 1 < x.len() && x[i] > x[i - 1] && x[i] > x[i + 1];
        let expected: Vec<f64> = (0..x.len()).map(|i| if is_peak(i) { 2.0 * x[i] } else { 0.0 }).collect();
        let x = Tensor::from_vec([x.len()], x)?;
        let fetched = executor.run(&program, &mut scope, &[("x", &x)], &[&gradient])?;
        assert_eq!(fetched[0].to_f64s(), expected);
    }
    Ok(())
}

#[test]
fn eager_values_have_the_decided_shape() -> Result<()> {
    let tape = autobwd::eager();
    let x = tape.leaf("x", Tensor::from_vec([7], X.to_vec())?);
    let found = peaks(&x, 0.5);
    assert_eq!(found.tensor()?, Tensor::from_vec([2], vec![1_i64, 4])?);
    x.gather(&found, 0).sum(&[]).backward()?;
    let gradient = x.gradient()?.tensor()?.to_f64s();
    assert_eq!(gradient, [0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0]);
    Ok(())
}
